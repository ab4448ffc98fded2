//! The daemon and its clients as processes find them: started on demand, killed, overrun, lied to.

mod connect;
mod hostile;
mod life;
mod support;
