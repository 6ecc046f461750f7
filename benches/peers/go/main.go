// The harness of redsync, written as its README shows it: goredis.NewPool, NewMutex, Lock, Unlock.
//
// Its defaults: 32 tries with random pauses of 50 to 250 ms between them, then Lock fails. A failure is
// counted, and Lock called again. It has to be given no lease; that of 8 s is not renewed. It has no
// fair and no read-write lock. The protocol is described in benches/peers/README.md.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
)

func main() {
	client := goredislib.NewClient(&goredislib.Options{Addr: os.Args[1]})
	rs := redsync.New(goredis.NewPool(client))
	fmt.Println("ready " + versions())
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		words := strings.Split(input.Text(), " ")
		switch words[0] {
		case "hold":
			lockFor(rs, words)
			fmt.Println("held")
		case "wait":
			fmt.Println("waiting")
			mutex := lockFor(rs, words)
			fmt.Println("held")
			unlock(mutex)
		case "fair":
			fmt.Println("lacks no fair lock")
		case "rw":
			fmt.Println("lacks no read-write lock")
		case "permits":
			fmt.Println("lacks no semaphore")
		case "latch":
			fmt.Println("lacks no latch")
		default:
			fmt.Println(newJob(words).run(rs))
		}
	}
}

func lockFor(rs *redsync.Redsync, words []string) *redsync.Mutex {
	lease := time.Duration(number(words[2])) * time.Millisecond
	mutex := rs.NewMutex(words[1], redsync.WithExpiry(lease))
	persist(mutex)
	return mutex
}

// Locks, as often as it takes; says how often it failed.
func persist(mutex *redsync.Mutex) (failures int) {
	for mutex.Lock() != nil {
		failures++
	}
	return failures
}

func unlock(mutex *redsync.Mutex) {
	if ok, err := mutex.Unlock(); !ok || err != nil {
		panic(fmt.Sprintf("unlock failed: %v", err))
	}
}

func number(word string) int {
	value, err := strconv.Atoi(word)
	if err != nil {
		panic(err)
	}
	return value
}

func versions() string {
	text := ""
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		switch module.Path {
		case "github.com/go-redsync/redsync/v4":
			text += "redsync " + module.Version + ", "
		case "github.com/redis/go-redis/v9":
			text += "go-redis " + module.Version + ", "
		}
	}
	return text + runtime.Version()
}
