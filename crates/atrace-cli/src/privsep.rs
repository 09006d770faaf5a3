//! Does work for many users at once, and does each user's work with that user's rights (`atrace_sys::privsep`).
//!
//! Each piece of work is done in a child process with the user's ids. Each child has its own time limit, and up to
//! sixteen children run at once. So no user can prevent the work for other users. There is also a time limit for all
//! users together. Work that was not started within this limit is not done, and an error is reported for it.

use std::time::{Duration, Instant};

use atrace_sys::privsep::{User, Worker, answers};

/// The number of children that run at the same time.
const TOGETHER: usize = 16;
/// The time after which no further child is started. Without this limit, the work could take arbitrarily long, because
/// each user id gets children of its own, and one person can own thousands of user ids.
const LONGEST: Duration = Duration::from_secs(10);

/// Does the work of each task in a child process. Passes each task's answer to `done`, with the time that the task
/// took.
///
/// `user` returns the user whose ids the child gets, and the time that is left for this user. A task is not started if
/// [`LONGEST`] has passed (error `too_many`), or if its user has no time left (error `too_late`).
pub(crate) fn ask<T>(
    tasks: &[T],
    user: impl Fn(&T) -> (User, Duration),
    work: impl Fn(&T, Duration) -> Vec<u8>,
    [too_many, too_late]: [&str; 2],
    mut done: impl FnMut(&T, Result<Vec<u8>, String>, Duration),
) {
    let start = Instant::now();
    for tasks in tasks.chunks(TOGETHER) {
        let mut workers = Vec::new();
        let mut begin = |task: &T| {
            let (user, left) = user(task);
            let is_late = start.elapsed() > LONGEST;
            if is_late || left.is_zero() {
                return Err(if is_late { too_many } else { too_late }.to_owned());
            }
            let worker = Worker::start(user, left, || work(task, left)).map_err(|e| e.to_string())?;
            workers.push(worker);
            Ok(())
        };
        let begun: Vec<_> = tasks.iter().map(&mut begin).collect();
        let mut answers = answers(workers).into_iter();
        for (task, begun) in tasks.iter().zip(begun) {
            let (answer, time) = match begun.map(|()| answers.next()) {
                Ok(Some((answer, time))) => (answer.map_err(|e| e.to_string()), time),
                Ok(None) => (Err("no answer".to_owned()), Duration::ZERO),
                Err(why) => (Err(why), Duration::ZERO),
            };
            done(task, answer, time);
        }
    }
}
