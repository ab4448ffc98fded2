//! The verbs, each a thin function: check what the program passed, call the device, fill in what it reads back.
//!
//! | module | what it is |
//! |---|---|
//! | [`handle`] | what a program's pointer points to, and how it is recognised |
//! | [`events`] | queues of events behind a file descriptor |
//! | [`convert`] | between C's structures and the device's types |
//! | [`device`] | the list of devices, contexts and the tables of operations |
//! | [`query`] | attributes of the device and its port |
//! | [`region`] | protection domains and memory regions |
//! | [`completion`] | completion queues and channels; [`poll_ex`] has the extended interface |
//! | [`queue_pair`] | queue pairs; [`post`] posts to them, [`wr`] with the `ibv_wr_*` interface |
//! | [`shared`] | shared receive queues |
//! | [`address`] | address handles |
//! | [`multicast`] | multicast groups |

pub mod address;
pub mod completion;
pub mod convert;
pub mod device;
pub mod events;
pub mod handle;
pub mod multicast;
pub mod poll_ex;
pub mod post;
pub mod query;
pub mod queue_pair;
pub mod region;
pub mod shared;
pub mod wr;
