package semel

// Processes that die at every step, and many requests of one key over two processes.

import (
	"bytes"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
)

// post sends an order whose handler inserts one effect and answers 201.
func post(t *testing.T, base, key, run string) reply {
	t.Helper()
	request, err := http.NewRequest("POST", base+"/ietf/orders/1", bytes.NewReader([]byte(`{"amount":5}`)))
	check(t, err)
	text, err := json.Marshal(map[string]any{
		"run":      run,
		"attempts": []any{map[string]any{"effects": []string{"a"}, "answer": map[string]any{"status": 201, "body": "ok"}}},
	})
	check(t, err)
	request.Header.Set("X-Once", string(text))
	request.Header.Set("X-User", "alice")
	request.Header.Set("Idempotency-Key", key)
	return exchange(request)
}

func TestAProcessThatIsKilledLeavesEffectAndRecordTogetherOrNotAtAll(t *testing.T) {
	s := readSuite(t)
	url, db := makeDatabase(t, append(s.Schema, "CREATE SEQUENCE run")...)
	healthy := startService(t, freePort(t), url, "")
	defer healthy.kill()
	for _, step := range []string{"begun", "entered", "handling", "handled", "left", "committed"} {
		for range times() {
			key := newUUID()
			doomed := startService(t, freePort(t), url, step)
			if got := post(t, doomed.base, key, "run"); got.err == nil {
				t.Fatalf("%s: the process should have died, but said %d %s", step, got.status, got.body)
			}
			doomed.kill()
			records := countRows(t, db, "semel.record WHERE key = $1 AND state = 2", key)
			isCommitted := map[bool]int{true: 1, false: 0}[step == "committed"]
			if records != isCommitted {
				t.Errorf("%s: %d records", step, records)
			}
			before := countRows(t, db, "once_effect") - records
			got := post(t, healthy.base, key, "run")
			if got.err != nil || got.status != 201 || (got.header.Get("Idempotency-Replayed") == "true") != (records == 1) {
				t.Errorf("%s: the retry got %+v", step, got)
			}
			if after := countRows(t, db, "once_effect"); after != before+1 {
				t.Errorf("%s: %d effects came of one key", step, after-before)
			}
		}
	}
	if others := countRows(t, db, "semel.record WHERE state <> 2"); others != 0 {
		t.Errorf("%d records are not settled", others)
	}
}

func TestParallelRequestsOfOneKeyOverTwoProcessesTakeEffectOnce(t *testing.T) {
	s := readSuite(t)
	url, db := makeDatabase(t, append(s.Schema, "CREATE SEQUENCE run")...)
	both := []*child{startService(t, freePort(t), url, ""), startService(t, freePort(t), url, "")}
	defer both[0].kill()
	defer both[1].kill()
	for round := range times() {
		key := newUUID()
		var group sync.WaitGroup
		var firsts atomic.Int64
		for at := range 200 {
			group.Add(1)
			go func() {
				defer group.Done()
				got := post(t, both[at%2].base, key, "run")
				if got.err != nil || got.status != 201 || string(got.body) != "ok" {
					t.Errorf("%+v", got)
				}
				if got.header.Get("Idempotency-Replayed") == "" {
					firsts.Add(1)
				}
			}()
		}
		group.Wait()
		if firsts.Load() != 1 || countRows(t, db, "once_effect") != round+1 {
			t.Errorf("%d answers are firsts, %d effects in %d rounds", firsts.Load(), countRows(t, db, "once_effect"), round+1)
		}
	}
}
