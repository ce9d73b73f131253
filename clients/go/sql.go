package semel

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
)

// The SQL of the store: four functions, their arguments and their results. Every parameter is cast, so that unnamed
// statements and any driver find the function.

const (
	columns = `verdict, status, headers, body, coalesce(outcome_unknown, false), coalesce(guarantee, 'atomic'),
		fingerprint, coalesce(now, 0), payload_hash`
	enterSQL = `SELECT ` + columns + ` FROM semel.enter($1::bytea, $2::bytea, $3::text, $4::text::bytea[], $5::text::jsonb, $6::text::jsonb)`
	lookSQL  = `SELECT ` + columns + ` FROM semel.look($1::bytea, $2::bytea, $3::text, $4::text::bytea[], $5::text::jsonb)`
	leaveSQL = `SELECT verdict FROM semel.leave($1::bytea, $2::integer, $3::bytea, $4::bytea)`
	admitSQL = `SELECT verdict, coalesce(retry_after_ms, 0) FROM semel.admit($1::bytea, $2::text::jsonb, $3::text::jsonb)`
)

var fencePattern = regexp.MustCompile(`^[1-9][0-9]{0,18}-[0-9a-f]{16}$`)

// row is what the store says of a key.
type row struct {
	verdict        string
	status         int
	headers        []byte
	body           []byte
	outcomeUnknown bool
	guarantee      string
	fingerprint    []byte
	now            int64
	payloadHash    []byte
}

type queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func readRow(result *sql.Row) (*row, error) {
	r := &row{}
	var status sql.NullInt64
	err := result.Scan(&r.verdict, &status, &r.headers, &r.body, &r.outcomeUnknown, &r.guarantee, &r.fingerprint, &r.now,
		&r.payloadHash)
	r.status = int(status.Int64)
	return r, err
}

func enter(ctx context.Context, tx queryer, a *arrival) (*row, error) {
	return readRow(tx.QueryRowContext(ctx, enterSQL, a.id, a.scope, a.key, byteaArray(a.fingerprints), toJSON(a.about), toJSON(a.options)))
}

func look(ctx context.Context, db queryer, a *arrival) (*row, error) {
	return readRow(db.QueryRowContext(ctx, lookSQL, a.id, a.scope, a.key, byteaArray(a.fingerprints), toJSON(a.options)))
}

func leave(ctx context.Context, tx queryer, a *arrival, status int, headers, body []byte) (verdict string, err error) {
	if body == nil {
		body = []byte{}
	}
	err = tx.QueryRowContext(ctx, leaveSQL, a.id, status, headers, body).Scan(&verdict)
	return verdict, err
}

func toJSON(value map[string]any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic("semel: " + err.Error())
	}
	return string(text)
}

// byteaArray writes an array as PostgreSQL's own text, which every driver can pass on.
func byteaArray(values [][]byte) string {
	items := make([]string, len(values))
	for at, value := range values {
		items[at] = `"\\x` + hex.EncodeToString(value) + `"`
	}
	return "{" + strings.Join(items, ",") + "}"
}

// sqlState is the SQLSTATE of an error, empty where the server did not answer. pgx and lib/pq both tell it so.
func sqlState(err error) string {
	var stated interface{ SQLState() string }
	if errors.As(err, &stated) {
		return stated.SQLState()
	}
	return ""
}

// isRetriable tells whether the whole transaction may be run again.
func isRetriable(err error) bool {
	state := sqlState(err)
	return state == "40001" || state == "40P01"
}

// isAway tells whether the server went away rather than refused: before COMMIT was sent, nothing was committed then.
func isAway(err error) bool {
	state := sqlState(err)
	if state == "" {
		return true
	}
	return strings.HasPrefix(state, "08") || strings.HasPrefix(state, "57P") || strings.HasPrefix(state, "53") ||
		state == "25P03" || state == "25P04"
}

// isUncommitted tells whether an error of COMMIT proves that nothing was committed. After any other error the
// transaction may have been committed, and only the record can tell.
func isUncommitted(err error) bool {
	state := sqlState(err)
	for _, class := range []string{"40", "23", "SM", "25"} {
		if strings.HasPrefix(state, class) {
			// 40003 says that the server itself does not know.
			return state != "40003"
		}
	}
	return false
}
