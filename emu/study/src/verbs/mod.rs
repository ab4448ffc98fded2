//! A thin client of the public verbs ABI.
