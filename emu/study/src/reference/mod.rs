//! Published results, to compare with.
