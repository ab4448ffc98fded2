//! The versioned entry points, which `build.rs` makes from `exports.txt`.

use crate::cm::*;
use crate::marshal::*;
use crate::rates::*;
use crate::strings::*;
use crate::system::*;
use crate::unsupported::*;
use crate::verbs::address::*;
use crate::verbs::completion::*;
use crate::verbs::device::*;
use crate::verbs::multicast::*;
use crate::verbs::query::*;
use crate::verbs::queue_pair::*;
use crate::verbs::region::*;
use crate::verbs::shared::*;

include!(concat!(env!("OUT_DIR"), "/entries.rs"));
