//! Runs real Redisson clients in Java processes, driven by a line protocol.

use std::collections::HashMap;
use std::fs::File;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use lockset_testkit::eventually;
use tokio::sync::oneshot;

/// An upper bound on every request to Java. Tests that expect a fast answer set their own bound.
const ANSWER_BOUND: Duration = Duration::from_secs(120);

/// Java's answer: a value, or the text of the exception.
pub(crate) type Answer = Result<String, String>;

/// The path where `scripts/build-interop` puts the Java side, built with the requested Redisson.
fn built() -> PathBuf {
    let version = std::env::var("LOCKSET_REDISSON").unwrap_or_default();
    let folder = match &*version {
        "" => "interop".to_owned(),
        version => format!("interop-{version}"),
    };
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name(folder)
}

type Pending = Mutex<HashMap<u64, oneshot::Sender<Answer>>>;

/// A Java process.
#[derive(Debug)]
struct Process {
    child: Mutex<Child>,
    requests: Mutex<ChildStdin>,
    pending: Arc<Pending>,
    next: AtomicU64,
}

impl Process {
    fn start() -> Arc<Self> {
        let built = built();
        assert!(
            built.join("built").exists(),
            "the Java side has not been built: `make interop` does it"
        );
        let (classes, libraries) = (built.join("classes"), built.join("lib/*"));
        let log = File::options()
            .create(true)
            .append(true)
            .open(built.join("java.log"))
            .unwrap();
        let mut child = Command::new("java")
            // These options halve the startup time.
            .args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"])
            .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
            .arg("-cp")
            .arg(format!("{}:{}", classes.display(), libraries.display()))
            .arg("lockset.interop.Main")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let requests = Mutex::new(child.stdin.take().unwrap());
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        let pending = Arc::new(Pending::default());
        let asked = Arc::clone(&pending);
        // The thread ends with the process.
        std::thread::spawn(move || {
            for line in answers.map_while(Result::ok) {
                let mut words = line.splitn(3, ' ');
                let id = words.next().and_then(|id| id.parse().ok());
                let (how, what) = (words.next(), words.next().unwrap_or("").to_owned());
                let answer = match how {
                    Some("ok") => Ok(what),
                    _ => Err(what),
                };
                let sender = id.and_then(|id: u64| asked.lock().unwrap().remove(&id));
                if let Some(sender) = sender {
                    let _ = sender.send(answer);
                }
            }
            // Closing the channels fails all pending requests.
            asked.lock().unwrap().clear();
        });
        Arc::new(Self {
            child: Mutex::new(child),
            requests,
            pending,
            next: AtomicU64::new(1),
        })
    }

    /// Sends the request at once. The caller may await the answer later, or never.
    fn ask(&self, words: &str) -> impl Future<Output = Answer> + Send + use<> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.pending.lock().unwrap().insert(id, sender);
        let line = format!("{id} {words}\n");
        // A process that was killed answers nothing.
        let sent = self.requests.lock().unwrap().write_all(line.as_bytes());
        if sent.is_err() {
            self.pending.lock().unwrap().remove(&id);
        }
        async move {
            match tokio::time::timeout(ANSWER_BOUND, receiver).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err("the process has ended".to_owned()),
                Err(_) => panic!("no answer to {line:?}; see java.log in {:?}", built()),
            }
        }
    }

    fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The server topology that a Redisson client is configured for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Topology {
    Single,
    /// Several servers. In this mode Redisson waits for replicas and repeats unanswered commands.
    Replicated,
    /// A cluster, from a comma-separated list of nodes.
    Cluster,
}

/// How a Redisson client is configured.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) url: String,
    pub(crate) watchdog_timeout: Duration,
    pub(crate) fair_wait_timeout: Duration,
    pub(crate) prefix: &'static str,
    pub(crate) topology: Topology,
}

impl Settings {
    /// Redisson's defaults.
    pub(crate) fn of(url: &str) -> Self {
        Self {
            url: url.trim_end_matches('/').to_owned(),
            watchdog_timeout: Duration::from_secs(30),
            fair_wait_timeout: Duration::from_secs(300),
            prefix: "-",
            topology: Topology::Single,
        }
    }
}

/// A Redisson client.
#[derive(Debug)]
pub(crate) struct Java {
    process: Arc<Process>,
    number: u64,
}

impl Java {
    /// Connects in a process shared by all tests.
    pub(crate) async fn connect(settings: &Settings) -> Self {
        static SHARED: OnceLock<Arc<Process>> = OnceLock::new();
        let process = SHARED.get_or_init(Process::start);
        Self::connect_in(Arc::clone(process), settings).await
    }

    /// Connects in a separate process that the test may kill.
    pub(crate) async fn connect_alone(settings: &Settings) -> Self {
        Self::connect_in(Process::start(), settings).await
    }

    async fn connect_in(process: Arc<Process>, settings: &Settings) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let words = format!(
            "{number} 0 connect {} {} {} {} {}",
            settings.url,
            settings.watchdog_timeout.as_millis(),
            settings.fair_wait_timeout.as_millis(),
            settings.prefix,
            match settings.topology {
                Topology::Single => "single",
                Topology::Replicated => "replicated",
                Topology::Cluster => "cluster",
            },
        );
        process.ask(&words).await.expect("Redisson connects");
        Self { process, number }
    }

    /// Sends a request to a thread, which is created on first use. The request is sent at once.
    pub(crate) fn ask(
        &self,
        thread: u64,
        verb: &str,
        args: &str,
    ) -> impl Future<Output = Answer> + Send + use<> {
        let number = self.number;
        self.process
            .ask(&format!("{number} {thread} {verb} {args}"))
    }

    /// Like [`ask`](Self::ask), but panics on a failure.
    #[track_caller]
    pub(crate) fn tell(
        &self,
        thread: u64,
        verb: &str,
        args: &str,
    ) -> impl Future<Output = String> + Send + use<> {
        let what = format!("{verb} {args}");
        let answer = self.ask(thread, verb, args);
        async move {
            match answer.await {
                Ok(value) => value,
                Err(error) => panic!("Java could not {what}: {error}"),
            }
        }
    }

    /// Like [`tell`](Self::tell), for requests with a boolean answer.
    pub(crate) fn is(
        &self,
        thread: u64,
        verb: &str,
        args: &str,
    ) -> impl Future<Output = bool> + Send + use<> {
        let answer = self.tell(thread, verb, args);
        async move { answer.await.parse().expect("true or false") }
    }

    /// Waits until a thread that waits for a lock is asleep.
    ///
    /// Redisson may lose a message that arrives between a thread's last check and its sleep: a
    /// writer's release wakes only threads that are asleep.
    pub(crate) async fn sleeps(&self, thread: u64) {
        eventually(Duration::from_secs(5), "Java sleeps", async || {
            self.is(thread, "is_asleep", "").await
        })
        .await;
    }

    /// A lock of this client, as a member of a lock on several servers.
    pub(crate) fn member(&self, name: &str) -> String {
        format!("{}={name}", self.number)
    }

    /// The holder id of a thread.
    pub(crate) async fn holder(&self, thread: u64) -> String {
        self.tell(thread, "holder", "lock -").await
    }

    /// Kills the process with `SIGKILL`. The client must have been connected with `connect_alone`.
    pub(crate) fn kill(self) {
        self.process.kill();
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        // Otherwise the client would try to reconnect to its server until the process ends.
        drop(self.process.ask(&format!("{} 0 close", self.number)));
    }
}
