//! Management datagrams: what the parser accepts comes out of the emitter again; and arbitrary commands, datagrams and
//! times into a connection manager.
#![no_main]

use libfuzzer_sys::fuzz_target;
use urxe::cm::message::Message;

#[path = "../../tests/cm/hostile.rs"]
mod hostile;

fuzz_target!(|script: &[u8]| {
    if let Ok((transaction, message)) = Message::parse(script)
        && message != Message::AlternatePath
    {
        let again = message.emit(transaction);
        assert_eq!(Message::parse(&again), Ok((transaction, message)));
    }
    let _ = hostile::run(script);
});
