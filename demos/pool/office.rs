//! A process of workers, who need a licence for each job.
//!
//! It works until its input ends.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockset::{Client, Semaphore};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::jobs::Jobs;
use crate::support::worker::{Orders, server_url};
use crate::support::{Result, paced};
use crate::{KILLED, LEASE, LICENCES, PROCESSES, WORKERS};

const JOB: Duration = Duration::from_millis(30);

struct Office {
    number: usize,
    jobs: Jobs,
    licences: Option<Semaphore>,
    is_over: AtomicBool,
}

pub(crate) async fn open(number: &str, jobs: &str, pool: Option<&str>) -> Result<()> {
    let client = match pool {
        Some(_) => Some(Client::builder(&server_url()?).lease(LEASE).build().await?),
        None => None,
    };
    let licences = client.as_ref().zip(pool);
    let office = Arc::new(Office {
        number: number.parse()?,
        jobs: Jobs::open(Path::new(jobs))?,
        licences: licences.map(|(client, pool)| client.semaphore(pool).permits(LICENCES)),
        is_over: AtomicBool::new(false),
    });
    let mut orders = Orders::take()?;
    if orders.next().await?.as_deref() != Some("go") {
        return Err("no start signal came".into());
    }

    let mut workers = JoinSet::new();
    for _ in 0..WORKERS / PROCESSES {
        workers.spawn(work(Arc::clone(&office)));
    }
    // No further orders are expected, so this waits for the end of the input.
    orders.next().await?;
    office.is_over.store(true, Ordering::Relaxed);
    while let Some(worked) = workers.join_next().await {
        worked??;
    }
    if let Some(client) = client {
        client.shutdown().await?;
    }
    Ok(())
}

/// A worker: does one job after another.
async fn work(office: Arc<Office>) -> Result<()> {
    while !office.is_over.load(Ordering::Relaxed) {
        match &office.licences {
            None => job(&office).await?,
            Some(licences) => {
                let licence = licences.acquire().await?;
                // `run` drops the job as soon as the licence is lost.
                match licence.run(job(&office)).await {
                    Ok(done) => done?,
                    Err(_lost) => continue,
                }
                licence.release().await?;
            }
        }
    }
    Ok(())
}

/// A job that needs a licence. In the process that will be killed, it never ends.
async fn job(office: &Office) -> Result<()> {
    let running = office.jobs.begin(office.number)?;
    if office.number == KILLED {
        std::future::pending::<()>().await;
    }
    sleep(paced(JOB)).await;
    running.end()
}
