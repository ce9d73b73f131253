package semel

// A proxy between a service and PostgreSQL that interferes with one COMMIT: the next one on a connection that has called
// semel.leave in its transaction.

import (
	"bytes"
	"net"
	"net/url"
	"sync"
	"testing"
)

type proxy struct {
	listener net.Listener
	target   string
	mutex    sync.Mutex
	how      string
	kill     func()
}

func startProxy(t testing.TB, database string) (*proxy, string) {
	t.Helper()
	place, err := url.Parse(database)
	check(t, err)
	target := place.Host
	if place.Port() == "" {
		target += ":5432"
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	p := &proxy{listener: listener, target: target}
	t.Cleanup(func() { listener.Close() })
	go p.accept()
	place.Host = listener.Addr().String()
	// Statements with their text in every message, so that the proxy finds it; as behind pgbouncer.
	query := place.Query()
	query.Set("default_query_exec_mode", "exec")
	place.RawQuery = query.Encode()
	return p, place.String()
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.carry(client)
	}
}

// arm prepares for the next COMMIT.
func (p *proxy) arm(how string, kill func()) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.how, p.kill = how, kill
}

func (p *proxy) isArmed() bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.how != ""
}

func (p *proxy) take() (string, func()) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	how, kill := p.how, p.kill
	p.how = ""
	return how, kill
}

func (p *proxy) carry(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer server.Close()
	var plan struct {
		sync.Mutex
		how  string
		kill func()
	}
	go func() {
		defer client.Close()
		part := make([]byte, 64<<10)
		for {
			count, err := server.Read(part)
			if err != nil {
				return
			}
			plan.Lock()
			how, kill := plan.how, plan.kill
			plan.Unlock()
			if how == "kill-after" {
				kill()
			}
			if how != "" {
				return
			}
			if _, err := client.Write(part[:count]); err != nil {
				return
			}
		}
	}()
	hasLeft := false
	part := make([]byte, 64<<10)
	for {
		count, err := client.Read(part)
		if err != nil {
			return
		}
		hasLeft = hasLeft || bytes.Contains(part[:count], []byte("semel.leave"))
		if hasLeft && bytes.Contains(bytes.ToLower(part[:count]), []byte("commit\x00")) {
			hasLeft = false
			switch how, kill := p.take(); how {
			case "kill-before":
				kill()
				return
			case "cut-before":
				return
			case "lose-answer", "kill-after":
				plan.Lock()
				plan.how, plan.kill = how, kill
				plan.Unlock()
			}
		}
		if _, err := server.Write(part[:count]); err != nil {
			return
		}
	}
}
