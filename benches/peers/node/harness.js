// The harness of redlock, as its README shows it: one ioredis client, `redlock.lock(name, ttl)`,
// `lock.unlock()`.
//
// Its defaults: 10 retries, 200 to 300 ms after one another, then it fails. A failure is counted, and the
// lock asked for again. It renews nothing. It has no fair and no read-write lock. The protocol is
// described in benches/peers/README.md.
'use strict';

const readline = require('node:readline');
const { setTimeout: sleep } = require('node:timers/promises');
const Redis = require('ioredis').default;
const Redlock = require('redlock');

const LEASE_MS = 30000;

const [host, port] = process.argv[2].split(':');
const redlock = new Redlock([new Redis({ host, port: Number(port) })]);

// Asks as often as it takes; `failed` is called each time it gives up.
async function persist(name, ttl, failed) {
  for (;;) {
    try {
      return await redlock.lock(name, ttl);
    } catch (error) {
      if (!(error instanceof Redlock.LockError)) throw error;
      failed();
    }
  }
}

// Tasks that take a lock, work, and give it back, until the time is over.
async function run([kind, name, tasks, ms, workUs]) {
  const spread = kind === 'spread';
  const work = Number(workUs) / 1000;
  const start = performance.now();
  const now = () => Math.floor((performance.now() - start) * 1000);
  let failures = 0;
  let inside = 0;
  let violations = 0;

  async function turns(own) {
    let log = 'turns';
    while (performance.now() - start < Number(ms)) {
      const asked = now();
      const lock = await persist(own, LEASE_MS, () => failures++);
      const granted = now();
      if (++inside > 1 && !spread) violations++;
      if (work > 0) await sleep(work);
      inside--;
      const worked = now();
      await lock.unlock();
      log += ` ${asked},${granted},${worked},${now()}`;
    }
    return log;
  }

  const all = Array.from({ length: Number(tasks) }, (_, task) => turns(spread ? `${name}:${task}` : name));
  const logs = await Promise.all(all);
  return [...logs, `done ${failures} ${violations}`].join('\n');
}

async function serve(words) {
  switch (words[0]) {
    case 'hold':
      await persist(words[1], Number(words[2]), () => {});
      return 'held';
    case 'wait': {
      console.log('waiting');
      const lock = await persist(words[1], Number(words[2]), () => {});
      lock.unlock();
      return 'held';
    }
    case 'fair':
      return 'lacks no fair lock';
    case 'rw':
      return 'lacks no read-write lock';
    case 'permits':
      return 'lacks no semaphore';
    case 'latch':
      return 'lacks no latch';
    default:
      return run(words);
  }
}

async function main() {
  const version = (name) => `${name} ${require(`${name}/package.json`).version}`;
  console.log(`ready ${version('redlock')}, ${version('ioredis')}, Node ${process.versions.node}`);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    console.log(await serve(line.split(' ')));
  }
  process.exit(0);
}

main();
