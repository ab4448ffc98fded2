//! A server and client without verbs, to test `urxe pair` itself: this executable, called as `programs toy PORT END [SERVER]`.
//! END is an exit code or the number of a signal, as `15!`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

pub(crate) fn main_if_asked() -> Option<ExitCode> {
    let arguments: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).skip(1).collect();
    match words.as_slice() {
        ["toy", port, end] => Some(server(port, end)),
        ["toy", port, end, server] => Some(client(port, end, server)),
        _ => None,
    }
}

fn server(port: &str, how: &str) -> ExitCode {
    // A client that does not wait for the listener fails.
    thread::sleep(Duration::from_millis(200));
    let listener = TcpListener::bind(format!("0.0.0.0:{port}")).expect("the port is free");
    let (mut stream, _) = listener.accept().expect("a client comes");
    stream.write_all(b"hello").expect("the client is there");
    println!("served");
    eprint!("no end of line");
    end(how)
}

fn client(port: &str, how: &str, server: &str) -> ExitCode {
    let mut text = String::new();
    let mut stream = TcpStream::connect(format!("{server}:{port}")).expect("the server listens");
    stream.read_to_string(&mut text).expect("the server answers");
    println!("{text} from {server}");
    end(how)
}

fn end(how: &str) -> ExitCode {
    if let Some(signal) = how.strip_suffix('!') {
        let kill = format!("kill -{signal} {}", std::process::id());
        let _ = std::process::Command::new("sh").args(["-c", &kill]).status();
        thread::sleep(Duration::from_secs(60));
    }
    ExitCode::from(how.parse::<u8>().expect("an exit code or a signal"))
}
