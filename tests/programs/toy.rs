//! A server and client without verbs, to test `urxe pair` itself: this executable, called as `programs toy ...`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

pub(crate) fn main_if_asked() -> Option<ExitCode> {
    let arguments: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).skip(1).collect();
    match words.as_slice() {
        ["toy", port] => Some(server(port)),
        ["toy", port, server] => Some(client(port, server)),
        _ => None,
    }
}

fn server(port: &str) -> ExitCode {
    // A client that does not wait for the listener fails.
    thread::sleep(Duration::from_millis(200));
    let listener = TcpListener::bind(format!("0.0.0.0:{port}")).expect("the port is free");
    let (mut stream, _) = listener.accept().expect("a client comes");
    stream.write_all(b"hello").expect("the client is there");
    println!("served");
    eprint!("no end of line");
    ExitCode::SUCCESS
}

fn client(port: &str, server: &str) -> ExitCode {
    let mut text = String::new();
    let mut stream = TcpStream::connect(format!("{server}:{port}")).expect("the server listens");
    stream.read_to_string(&mut text).expect("the server answers");
    println!("{text} from {server}");
    ExitCode::from(3)
}
