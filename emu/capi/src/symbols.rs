//! The versioned entry points, which `build.rs` makes from `exports.txt`.

use crate::cm::addrinfo::*;
use crate::cm::channel::*;
use crate::cm::connect::*;
use crate::cm::daemon::*;
use crate::cm::endpoint::*;
use crate::cm::id::*;
use crate::cm::multicast::*;
use crate::cm::qp::*;
use crate::cm::resolve::*;
use crate::cm::unsupported::*;
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
