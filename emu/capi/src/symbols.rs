//! The versioned entry points, which `build.rs` makes from `exports.txt`.

use crate::cm::*;
use crate::marshal::*;
use crate::rates::*;
use crate::strings::*;
use crate::system::*;
use crate::unsupported::*;

include!(concat!(env!("OUT_DIR"), "/entries.rs"));
