//! Random traffic through random faults that change while it runs: nothing hangs, nothing is wrong, nothing is left.

use urxe::device::Device;
use urxe::io::impair::Impairments;
use urxe::time::Latency;

use crate::harness::{MS, Rng, SECOND, US, World, seeds};
use crate::traffic::{Fabric, Plan, exchange};

/// A network whose faults change now and then.
struct Weather {
    world: World,
    rng: Rng,
    next_change: u64,
    /// The system refuses packets at times.
    refusals: bool,
    end: urxe::time::Instant,
}

impl Weather {
    fn impairments(rng: &mut Rng) -> Impairments {
        let chance = |rng: &mut Rng, most: f64| match rng.below(3) {
            0 => 0.0,
            1 => most / 10.0,
            _ => most * rng.below(1000) as f64 / 1000.0,
        };
        let least = rng.below(100 * US);
        Impairments {
            loss: chance(rng, 0.3),
            duplicate: chance(rng, 0.2),
            reorder: chance(rng, 0.3),
            corrupt: chance(rng, 0.1),
            delay: Latency::Uniform(least, least + rng.below(MS)),
            rate: rng.percent(30).then(|| 100_000_000 + rng.below(1_000_000_000)),
            queue: None,
        }
    }

    fn change(&mut self) {
        let now = self.world.now().0;
        let ips = [self.world.ip(0), self.world.ip(1)];
        for (from, to) in [(0, 1), (1, 0)] {
            let mut impairments = Self::impairments(&mut self.rng);
            if self.rng.percent(5) {
                // Nothing at all comes through.
                impairments.loss = 1.0;
            }
            self.world.net.impair(ips[from], ips[to], impairments);
        }
        if self.rng.percent(30) {
            let device = self.rng.below(2) as usize;
            self.world.links[device].limit_queue(24_000 + self.rng.below(1 << 20) as usize);
        }
        // Shorter than the time in which a queue pair gives up: 8 times at least 250 ms.
        self.next_change = now + 1 + self.rng.below(200 * MS);
    }
}

impl Fabric for Weather {
    fn device(&self, end: usize) -> &Device {
        &self.world.devices[end]
    }
    fn progress(&mut self) {
        if self.world.now().0 >= self.next_change {
            self.change();
        }
        if self.refusals {
            for link in &self.world.links {
                link.set_send_room(Some(self.rng.below(60) as usize));
            }
        }
        let slack = if self.rng.percent(50) { 0 } else { self.rng.below(50 * US) };
        if !self.world.step(slack) {
            self.world.advance_to(self.world.now().plus(MS));
        }
    }
    fn check_time(&self, state: &dyn Fn() -> String) {
        assert!(self.world.now() < self.end, "stalled in virtual time:\n{}", state());
    }
}

#[test]
fn random_faults_never_hang_reorder_repeat_or_spoil_anything_and_leave_nothing_in_flight() {
    for first in seeds(&[1000]) {
        let cases = if std::env::var_os(crate::harness::SEED_VARIABLE).is_some() { 1 } else { 24 };
        for seed in (0..cases).map(|i| first.wrapping_add(i)) {
            eprintln!("seed {seed}");
            let mut rng = Rng(seed);
            let world = World::new(seed, Weather::impairments(&mut rng), 2);
            let refusals = rng.percent(40);
            let plan = Plan {
                messages: 240,
                connections: 1 + rng.below(3) as usize,
                max_len: [4, 64, 400][rng.below(3) as usize] << 10,
                large_percent: rng.below(20),
            };
            let end = urxe::time::Instant(300 * SECOND);
            let mut weather = Weather { world, rng, next_change: 0, refusals, end };
            exchange(&mut weather, seed, &plan);
        }
    }
}

#[test]
fn when_all_is_done_no_window_is_charged_and_no_timer_runs() {
    for seed in seeds(&[7, 8, 9]) {
        eprintln!("seed {seed}");
        let bad = Impairments {
            loss: 0.1,
            duplicate: 0.1,
            reorder: 0.1,
            delay: Latency::Uniform(US, 90 * US),
            ..Default::default()
        };
        let mut world = World::new(seed, bad, 2);
        let init = crate::harness::EndInit { bytes: 1 << 20, ..Default::default() };
        let pairs: Vec<_> =
            (0..3).map(|_| crate::harness::pair(&world, &init, &Default::default())).collect();
        for round in 0..5 {
            for (a, b) in &pairs {
                b.recv(round, &[b.sge(0, 100_000)]);
                a.post(round, urxe::verbs::SendOp::Send, &[a.sge(0, 100_000)]);
                a.post(round, urxe::verbs::SendOp::Read(b.remote(0)), &[a.sge(0, 300_000)]);
                let add = urxe::verbs::SendOp::FetchAdd { remote: b.remote(0), add: 1 };
                a.post(round, add, &[a.sge(0, 8)]);
                b.post(round, urxe::verbs::SendOp::Write(a.remote(1 << 19)), &[b.sge(0, 200_000)]);
            }
            let (ips, mut done) = ([world.ip(0), world.ip(1)], 0);
            world.run_until("the completions", 60 * SECOND, |_| {
                done += pairs.iter().map(|(a, b)| a.poll().len() + b.poll().len()).sum::<usize>();
                done == 3 * 5
            });
            assert_eq!(world.devices[0].in_flight(ips[1]), 0);
            assert_eq!(world.devices[1].in_flight(ips[0]), 0);
            world.quiesce(60 * SECOND);
        }
    }
}
