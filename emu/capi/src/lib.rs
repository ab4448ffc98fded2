//! The drop-in libibverbs and librdmacm.
