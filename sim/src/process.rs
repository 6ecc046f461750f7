//! A process: tasks that run, stand still, or end all at once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinHandle};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Runs,
    Stands,
    /// Killed: none of its tasks runs.
    Ended,
}

#[derive(Debug)]
struct State {
    condition: Condition,
    /// Of tasks that would run.
    waiting: Vec<Waker>,
    tasks: Vec<AbortHandle>,
}

#[derive(Debug)]
pub(crate) struct Process(Mutex<State>);

impl Default for Process {
    fn default() -> Self {
        Self(Mutex::new(State {
            condition: Condition::Runs,
            waiting: Vec::new(),
            tasks: Vec::new(),
        }))
    }
}

impl Process {
    /// Starts a task of this process.
    pub(crate) fn spawn<T: Send + 'static>(
        self: &Arc<Self>,
        work: Pin<Box<dyn Future<Output = T> + Send>>,
    ) -> JoinHandle<Option<T>> {
        let task = tokio::spawn(Task {
            process: Arc::clone(self),
            work: Some(work),
        });
        let mut state = self.0.lock();
        state.tasks.retain(|task| !task.is_finished());
        state.tasks.push(task.abort_handle());
        drop(state);
        task
    }

    /// A task that runs as the process does, started from outside.
    pub(crate) fn wrap(
        self: &Arc<Self>,
        work: Pin<Box<dyn Future<Output = ()> + Send>>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let task = Task {
            process: Arc::clone(self),
            work: Some(work),
        };
        Box::pin(async move {
            task.await;
        })
    }

    fn change(&self, condition: Condition) {
        let mut state = self.0.lock();
        state.condition = condition;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn pause(&self) {
        self.change(Condition::Stands);
    }

    pub(crate) fn resume(&self) {
        self.change(Condition::Runs);
    }

    pub(crate) fn end(&self) {
        self.change(Condition::Ended);
        let tasks = std::mem::take(&mut self.0.lock().tasks);
        tasks.iter().for_each(AbortHandle::abort);
    }
}

struct Task<T> {
    process: Arc<Process>,
    /// `None` once it has ended.
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
}

impl<T> Future for Task<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let process = Arc::clone(&self.process);
        {
            let mut state = process.0.lock();
            match state.condition {
                Condition::Runs => {}
                Condition::Stands => {
                    state.waiting.push(context.waker().clone());
                    return Poll::Pending;
                }
                Condition::Ended => {
                    drop(state);
                    self.work = None;
                    return Poll::Ready(None);
                }
            }
        }
        let Some(work) = &mut self.work else {
            return Poll::Ready(None);
        };
        work.as_mut().poll(context).map(Some)
    }
}
