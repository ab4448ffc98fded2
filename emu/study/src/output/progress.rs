//! The progress bar.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How far a study is, on standard error; nothing at all if that is no terminal.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar of so many steps, each about as long as the others.
    pub fn new(steps: u64) -> Self {
        // The target hides itself where there is no terminal.
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        let template = "{bar:30} {pos}/{len}  {elapsed}, about {eta} left  {wide_msg}";
        bar.set_style(ProgressStyle::with_template(template).expect("the template is well-formed"));
        Self { bar }
    }

    /// A step begins.
    pub fn begin(&self, step: &str) {
        self.bar.set_message(step.to_string());
    }

    /// A step is done.
    pub fn done(&self) {
        self.bar.inc(1);
    }

    /// Writes a line above the bar, or where standard error is no terminal, just the line.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }
}

/// The bar leaves the screen to what comes next.
impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
