//! The addresses of a host name.
//!
//! Invariant: a client looks a name up once at a time. The system blocks a thread for a look-up until the resolver
//! answers, and the time limit of an attempt to connect does not end that.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt, Shared};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

type Found = Result<Arc<[SocketAddr]>, Arc<io::Error>>;

/// The look-ups that are under way, by host and port.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lookups(Arc<Mutex<FxHashMap<(String, u16), Shared<BoxFuture<'static, Found>>>>>);

impl Lookups {
    pub(super) async fn of(&self, host: &str, port: u16) -> io::Result<Arc<[SocketAddr]>> {
        let name = (host.to_owned(), port);
        let look_up = |name| async move {
            let found = tokio::net::lookup_host::<(String, u16)>(name).await?;
            Ok(found.collect())
        };
        self.joined(name, look_up).await
    }

    /// Joins the look-up of this name, or begins it.
    async fn joined<F>(
        &self,
        name: (String, u16),
        look_up: impl FnOnce((String, u16)) -> F,
    ) -> io::Result<Arc<[SocketAddr]>>
    where
        F: Future<Output = io::Result<Arc<[SocketAddr]>>> + Send + 'static,
    {
        let found = {
            let mut under_way = self.0.lock();
            let begin = || {
                let (all, looking) = (self.clone(), look_up(name.clone()));
                let name = name.clone();
                let task = tokio::spawn(async move {
                    let found = looking.await;
                    all.0.lock().remove(&name);
                    found.map_err(Arc::new)
                });
                let joined = |ended| match ended {
                    Ok(found) => found,
                    Err(error) => Err(Arc::new(io::Error::other(error))),
                };
                task.map(joined).boxed().shared()
            };
            under_way.entry(name.clone()).or_insert_with(begin).clone()
        };
        let found = found.await;
        found.map_err(|error| io::Error::new(error.kind(), error))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn a_name_is_looked_up_once_at_a_time() {
        let (lookups, begun) = (Lookups::default(), Arc::new(AtomicUsize::new(0)));
        let answers = Arc::new(Semaphore::new(0));
        let asked = || {
            let (begun, answers) = (Arc::clone(&begun), Arc::clone(&answers));
            lookups.joined(("db".to_owned(), 6379), move |_| async move {
                begun.fetch_add(1, Ordering::Relaxed);
                answers.acquire().await.unwrap().forget();
                Ok([SocketAddr::from(([127, 0, 0, 1], 6379))].into())
            })
        };
        // The time of these callers is over before the resolver answers.
        for _ in 0..10 {
            assert!(asked().now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        answers.add_permits(1);
        assert_eq!(asked().await.unwrap().len(), 1);
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        answers.add_permits(1);
        asked().await.unwrap();
        assert_eq!(begun.load(Ordering::Relaxed), 2, "an answer is not kept");
    }
}
