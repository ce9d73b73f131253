package semel

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Reads a request: who sent it, under which key, for what. Pure: it asks no database and no clock.

// Caller is who sent a request, as the service itself has verified it.
type Caller struct {
	// Tenant is the group that the principal belongs to; empty where there is none.
	Tenant string
	// Principal is who sent it. It is required.
	Principal string

	isShared bool
	isHashed bool
}

// SharedCaller is one principal for everybody, in so many words. Its keys must be version 4 UUIDs, since only their
// random bits keep strangers apart.
func SharedCaller(name string) Caller { return Caller{Principal: "shared:" + name, isShared: true} }

// AuthorizationCaller is known by the hash of the Authorization header. It cannot know revocation: verify first.
func AuthorizationCaller(header string) Caller {
	return Caller{Principal: hashedPrincipal("authorization", header), isHashed: true}
}

// CookieCaller is known by the hash of a cookie's value. It cannot know revocation: verify first.
func CookieCaller(name, value string) Caller {
	return Caller{Principal: hashedPrincipal("cookie:"+name, value), isHashed: true}
}

// callerCharsMax is the longest name of a principal or tenant, in characters.
const callerCharsMax = 255

func (c Caller) check() *Problem {
	isReserved := strings.HasPrefix(c.Principal, "authorization:") || strings.HasPrefix(c.Principal, "cookie:") ||
		strings.HasPrefix(c.Principal, "shared:")
	if c.Principal == "" || isReserved && !c.isShared && !c.isHashed {
		return newProblem("identity-missing", "the verified principal is empty or has a reserved prefix")
	}
	for _, name := range []string{c.Principal, c.Tenant} {
		isTooLong := utf8.RuneCountInString(name) > callerCharsMax
		if isTooLong || !utf8.ValidString(name) || strings.IndexFunc(name, unicode.IsControl) >= 0 {
			return newProblem("identity-missing",
				fmt.Sprintf("a principal or tenant has at most %d characters and no control characters", callerCharsMax))
		}
	}
	return nil
}

// Request is one arrival.
type Request struct {
	// Endpoint is the stable name of the operation, such as "create-order".
	Endpoint string
	// Was lists former names of the endpoint, so that keys used under them stay known.
	Was []string
	// Caller is the verified caller.
	Caller Caller
	// Key, where it does not come from the headers or the body.
	Key string
	// Method is the request's method; empty means POST.
	Method string
	// Params are the path parameters in the order of the pattern, percent-encoding untouched.
	Params [][2]string
	// Query as received, without its question mark.
	Query string
	// Headers as received.
	Headers [][2]string
	// Body as received.
	Body []byte
	// RequestID is kept with the record, for people.
	RequestID string
}

// arrival is a request as the store is asked about it.
type arrival struct {
	id, scope    []byte
	key          string
	fingerprints [][]byte
	payloadHash  []byte
	about        map[string]any
	options      map[string]any
	generatedAt  *int64
	requestID    string
}

// isLike tells whether two arrivals of one id are the same request.
func (a *arrival) isLike(other *arrival) bool {
	if len(a.fingerprints) == 0 || len(other.fingerprints) == 0 {
		return len(a.fingerprints) == len(other.fingerprints)
	}
	return bytes.Equal(a.fingerprints[0], other.fingerprints[0])
}

// shape is a request under one name of its endpoint.
type shape struct {
	scope        []byte
	fingerprints [][]byte
	rotation     []byte
}

// read makes an arrival of a request; nil without a problem where it is not keyed.
func (o *Once) read(request *Request) (*arrival, *Problem) {
	p := &o.profile
	if problem := request.Caller.check(); problem != nil {
		return nil, problem
	}
	if len(request.Body) > p.maxBody {
		return nil, newProblem("body-too-large", fmt.Sprintf("at most %d bytes are taken", p.maxBody))
	}
	headers := headerLines(request.Headers)
	key, problem := o.readKey(request, headers)
	if problem != nil || key == "" {
		return nil, problem
	}
	if request.Caller.isShared && !isRandomUUID(key) {
		return nil, newProblem("key-too-weak", "a shared identity demands a version 4 UUID as key")
	}
	form, problem := p.recipe.readBody(headers.one("content-type"), request.Body)
	if problem != nil {
		return nil, problem
	}
	current := o.shapeAs(request, request.Endpoint, key, form)
	a := &arrival{
		id: idOf(current.scope, key), scope: current.scope, key: key, fingerprints: current.fingerprints,
		requestID: request.RequestID,
	}
	if p.reveal == revealPayloadHashes {
		a.payloadHash = form.payloadHash()
	}
	a.options = o.optionsFor(current)
	if problem := o.describe(a, request, headers); problem != nil {
		return nil, problem
	}
	o.addFormers(a, request, key, form)
	return a, nil
}

func (o *Once) readKey(request *Request, headers headerLines) (string, *Problem) {
	if request.Key != "" {
		return request.Key, checkKey(o.profile.key.format, request.Key)
	}
	found, problem := o.profile.key.read(headers, request.Body)
	switch {
	case problem != nil:
		return "", problem
	case found != nil:
		return found.key, nil
	case o.profile.key.presence == "mint":
		return o.mintKey(), nil
	default:
		return "", nil
	}
}

func (o *Once) shapeAs(request *Request, endpoint, key string, form bodyForm) shape {
	p, caller := &o.profile, request.Caller
	var tenant, principal, name *string
	if p.scopeTenant && caller.Tenant != "" {
		tenant = &caller.Tenant
	}
	// Every scope belongs to somebody.
	if p.scopePrincipal || tenant == nil {
		principal = &caller.Principal
	}
	if p.scopeEndpoint {
		name = &endpoint
	}
	method := request.Method
	if method == "" {
		method = "POST"
	}
	what := described{
		method: method, route: endpoint, query: request.Query, principal: caller.Principal, params: request.Params,
	}
	s := shape{scope: scopeOf(tenant, principal, name, countedHost(headerLines(request.Headers)))}
	for _, secret := range o.options.Secrets {
		s.fingerprints = append(s.fingerprints, append([]byte{2}, p.recipe.fingerprint(what, form, secret)...))
	}
	s.fingerprints = append(s.fingerprints, append([]byte{1}, p.recipe.fingerprint(what, form, nil)...))
	if caller.isHashed {
		// By the oldest secret, so that a new one does not hide what was recorded before it came.
		oldest := s.fingerprints[max(len(o.options.Secrets)-1, 0)]
		s.rotation = rotationMark(endpoint, key, oldest[1:])
	}
	return s
}

// optionsFor are the options of semel.enter and semel.look for this profile.
func (o *Once) optionsFor(current shape) map[string]any {
	p := &o.profile
	releases := []int{}
	for status := 200; status < 500; status++ {
		// The guard's own refusal is recorded, whatever the profile says of a handler's answer with its status.
		if p.guard == nil && p.releases(status) {
			releases = append(releases, status)
		}
	}
	options := map[string]any{
		"lifetime_ms": p.lifetime().Milliseconds(), "anchor": "settled", "max_response_bytes": p.maxResponse,
		"releases": releases, "retry_window_ms": p.retryWindow.Milliseconds(), "skew_ms": p.skew.Milliseconds(),
		"hold_ms": o.options.HoldTime.Milliseconds(), "owned": o.options.Owned,
	}
	if p.fromCreation {
		options["anchor"] = "created"
	}
	if current.rotation != nil {
		options["rotation"] = hex.EncodeToString(current.rotation)
	}
	return options
}

func (o *Once) describe(a *arrival, request *Request, headers headerLines) *Problem {
	a.about = map[string]any{
		"endpoint": request.Endpoint, "principal": request.Caller.Principal, "request_id": request.RequestID,
	}
	if request.Caller.Tenant != "" {
		a.about["tenant"] = request.Caller.Tenant
	}
	if a.payloadHash != nil {
		a.about["payload_hash"] = hex.EncodeToString(a.payloadHash)
	}
	required, problem := o.profile.key.readRequired(headers)
	if problem != nil {
		return problem
	}
	if id, has := required["x-client-tx-id"]; has {
		a.about["client_tx_id"] = id
	}
	if fence := fenceOf(headers); fence != nil {
		a.options["fence"] = *fence
	}
	if problem := o.readFirstSent(a, headers); problem != nil {
		return problem
	}
	if o.profile.guard == nil {
		return nil
	}
	generatedAt, problem := o.profile.guard.read(request.Body)
	if problem == nil {
		a.generatedAt, a.about["client_generated_at"] = &generatedAt, generatedAt
	}
	return problem
}

// fenceOf is the fence of a gateway's claim.
func fenceOf(headers headerLines) *string {
	fence := headers.one("semel-fence")
	if fence == nil || !fencePattern.MatchString(*fence) {
		return nil
	}
	return fence
}

// countedHost is the host that a gateway counts in the scopes of its keys. Without its claim nobody chooses where a key
// is looked up.
func countedHost(headers headerLines) *string {
	host := headers.one("semel-host")
	if host == nil || fenceOf(headers) == nil {
		return nil
	}
	counted := hostOf(*host)
	return &counted
}

func (o *Once) readFirstSent(a *arrival, headers headerLines) *Problem {
	lines := headers.values("idempotency-first-sent")
	if !o.options.RefuseOld || len(lines) == 0 {
		return nil
	}
	if len(lines) > 1 {
		return newProblem("timestamp-invalid", "Idempotency-First-Sent is given twice")
	}
	at, isValid := parseTimestamp(strings.Trim(lines[0], " \t"))
	if !isValid {
		return newProblem("timestamp-invalid", "Idempotency-First-Sent is not an RFC 3339 date-time")
	}
	a.options["first_sent"] = at
	return nil
}

func (o *Once) addFormers(a *arrival, request *Request, key string, form bodyForm) {
	var formers []map[string]any
	for _, name := range request.Was {
		former := o.shapeAs(request, name, key, form)
		prints := make([]string, len(former.fingerprints))
		for at, print := range former.fingerprints {
			prints[at] = hex.EncodeToString(print)
		}
		entry := map[string]any{"scope": hex.EncodeToString(former.scope), "fingerprints": prints}
		if former.rotation != nil {
			entry["rotation"] = hex.EncodeToString(former.rotation)
		}
		formers = append(formers, entry)
	}
	if formers != nil {
		a.options["formers"] = formers
	}
}

// read finds the action's time in a body.
func (g *guard) read(body []byte) (int64, *Problem) {
	invalid := newProblem("timestamp-invalid", g.generatedAt+" must be an RFC 3339 date-time")
	document, err := parseJSON(body)
	if err != nil {
		return 0, invalid
	}
	value := document.root.get(g.generatedAt)
	if value == nil || value.kind != jsonText {
		return 0, invalid
	}
	at, isValid := parseTimestamp(value.text)
	if !isValid {
		return 0, invalid
	}
	return at, nil
}

// refuse is the guard's refusal of an action; nil where it is fresh.
func (g *guard) refuse(generatedAt, now int64) *Problem {
	written := func(at int64) string { return time.UnixMilli(at).UTC().Format("2006-01-02T15:04:05.999Z") }
	verdict := g.judge(generatedAt, now)
	if verdict == fresh {
		return nil
	}
	problem := newProblem("stale-action", "").
		with("clientGeneratedAt", written(generatedAt)).with("serverNow", written(now)).
		with("graceHours", int64(g.grace/time.Hour))
	if verdict == stale {
		problem.with("ageDays", (now-generatedAt)/day.Milliseconds()).with("capDays", int64(g.cap/day))
	}
	return problem
}
