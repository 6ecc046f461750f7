package main

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
)

// A job: goroutines that take a lock, work, and give it back, until the time is over.
type job struct {
	name       string
	spread     bool
	tasks      int
	time, work time.Duration
	start      time.Time
	inside     atomic.Int64
	failures   atomic.Int64
	violations atomic.Int64
}

// kind name tasks ms work_us reads
func newJob(words []string) *job {
	return &job{
		name:   words[1],
		spread: words[0] == "spread",
		tasks:  number(words[2]),
		time:   time.Duration(number(words[3])) * time.Millisecond,
		work:   time.Duration(number(words[4])) * time.Microsecond,
	}
}

func (job *job) run(rs *redsync.Redsync) string {
	logs := make([]strings.Builder, job.tasks)
	var tasks sync.WaitGroup
	job.start = time.Now()
	for task := range logs {
		name := job.name
		if job.spread {
			name = fmt.Sprintf("%s:%d", name, task)
		}
		tasks.Go(func() { job.turns(rs.NewMutex(name), &logs[task]) })
	}
	tasks.Wait()
	var answer strings.Builder
	for task := range logs {
		answer.WriteString("turns" + logs[task].String() + "\n")
	}
	fmt.Fprintf(&answer, "done %d %d", job.failures.Load(), job.violations.Load())
	return answer.String()
}

// Writes down when each turn of one goroutine asked, was granted, had worked, and had released.
func (job *job) turns(mutex *redsync.Mutex, log *strings.Builder) {
	for time.Since(job.start) < job.time {
		asked := job.now()
		job.failures.Add(int64(persist(mutex)))
		granted := job.now()
		if !job.spread && job.inside.Add(1) > 1 {
			job.violations.Add(1)
		}
		if job.work > 0 {
			time.Sleep(job.work)
		}
		if !job.spread {
			job.inside.Add(-1)
		}
		worked := job.now()
		unlock(mutex)
		fmt.Fprintf(log, " %d,%d,%d,%d", asked, granted, worked, job.now())
	}
}

func (job *job) now() int64 {
	return time.Since(job.start).Microseconds()
}
