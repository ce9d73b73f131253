package semel

import (
	"context"
	"sync"
	"time"
)

// One leader for each key and process: it alone talks to the database about that key, runs the handler or polls. The
// others wait for it in memory, holding no connection.

const (
	leadersMax       = 10_000
	waitersMax       = 100_000
	waitersPerKeyMax = 10_000
)

// news is what a leader leaves to those who waited for it.
type news struct {
	// row answers everyone who sent the same request; nil where the key has to be asked about again.
	row *row
	of  *arrival
}

// flight is one leader's turn.
type flight struct {
	done    chan struct{}
	news    news
	waiters int
}

type flights struct {
	mutex   sync.Mutex
	byID    map[string]*flight
	waiters int
}

// join makes the caller the leader of a key, or waits until the present leader has finished. It returns the flight
// that the caller now leads, or the news of the one that ended.
func (f *flights) join(ctx context.Context, a *arrival, until time.Time, mayWait bool) (*flight, news, *Problem) {
	f.mutex.Lock()
	current, isLed := f.byID[string(a.id)]
	if !isLed {
		defer f.mutex.Unlock()
		if len(f.byID) >= leadersMax {
			return nil, news{}, newProblem("overloaded", "too many keys are in progress").after(time.Second)
		}
		if f.byID == nil {
			f.byID = map[string]*flight{}
		}
		led := &flight{done: make(chan struct{})}
		f.byID[string(a.id)] = led
		return led, news{}, nil
	}
	if !mayWait {
		f.mutex.Unlock()
		return nil, news{}, newProblem("in-flight", "").after(time.Second)
	}
	if current.waiters >= waitersPerKeyMax || f.waiters >= waitersMax {
		f.mutex.Unlock()
		return nil, news{}, newProblem("too-many-waiters", "").after(time.Second)
	}
	current.waiters++
	f.waiters++
	f.mutex.Unlock()
	defer func() {
		f.mutex.Lock()
		current.waiters--
		f.waiters--
		f.mutex.Unlock()
	}()
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-current.done:
		return nil, current.news, nil
	case <-timer.C:
		return nil, news{}, newProblem("in-flight", "").after(time.Second)
	case <-ctx.Done():
		return nil, news{}, newProblem("in-flight", "the caller has gone").after(time.Second)
	}
}

// finish ends a leader's turn.
func (f *flights) finish(a *arrival, led *flight, what news) {
	f.mutex.Lock()
	delete(f.byID, string(a.id))
	f.mutex.Unlock()
	led.news = what
	close(led.done)
}
