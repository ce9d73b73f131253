package semel

import (
	"fmt"
	"slices"
	"time"
)

// Profiles: the presets of spec/contract.md, as far as a service needs them, and the one table that says what an
// answer does to the handler's transaction.

type problemForm int

const (
	formProblem problemForm = iota
	formEnvelope
	formError
	formMessage
	formText
	formMesh
)

type inFlightPolicy int

const (
	inFlightWait inFlightPolicy = iota
	inFlightReject
	inFlightAccepted
)

type revealPolicy int

const (
	revealNothing revealPolicy = iota
	revealPayloadHashes
	revealPrefix8
)

// Profile holds everything that differs between services. Take one of the presets by name; change it by its methods.
type Profile struct {
	name           string
	key            keyPolicy
	scopeTenant    bool
	scopePrincipal bool
	scopeEndpoint  bool
	recipe         recipe
	mismatchStatus int
	reveal         revealPolicy
	inFlight       inFlightPolicy
	wait           time.Duration
	form           problemForm
	wording        map[string]wording
	stripeHeaders  bool
	retryWindow    time.Duration
	skew           time.Duration
	margin         time.Duration
	fromCreation   bool
	releases       func(status int) bool
	duplicate      int
	claimedName    string
	mintsULID      bool
	mintsMillis    bool
	guard          *guard
	admission      admission
	maxBody        int
	maxResponse    int
}

// admission bounds the new keys of a principal; zero count: no bound.
type admission struct {
	count  int
	window time.Duration
}

// Preset returns a profile by its name: ietf, stripe, walker, agents, scores, feed or mesh.
func Preset(name string) (Profile, error) {
	p := ietf()
	p.name = name
	switch name {
	case "ietf":
	case "stripe":
		p.key.presence, p.mismatchStatus, p.stripeHeaders = "optional", 400, true
		p.inFlight, p.wait = inFlightReject, time.Second
		p.setLifetime(day, 0, 0, true)
	case "walker":
		p.toWalker()
	case "agents":
		p.key.sources, p.key.syntax, p.key.presence = []string{"header:X-Idempotency-Key"}, "bare", "optional"
		p.scopeEndpoint = false
		p.inFlight, p.wait = inFlightReject, time.Second
		p.form, p.wording = formText, map[string]wording{"in-flight": {text: "Request is being processed"}}
		p.setLifetime(day, 0, 0, true)
	case "scores":
		p.key.sources, p.key.syntax, p.key.format = []string{"header:X-Idempotency-Key"}, "bare", "any255"
		p.scopeEndpoint = false
		p.inFlight, p.claimedName = inFlightAccepted, "processing"
		p.form, p.wording = formMessage, map[string]wording{"key-missing": {text: "Idempotency key required"}}
		p.setLifetime(23*time.Hour, 0, time.Hour, false)
	case "feed":
		p.toFeed()
	case "mesh":
		p.toMesh()
	default:
		return Profile{}, fmt.Errorf("semel: no profile is called %q", name)
	}
	return p, nil
}

const day = 24 * time.Hour

func ietf() Profile {
	return Profile{
		key: keyPolicy{
			sources: []string{"header:Idempotency-Key"}, syntax: "both", format: "printable255", presence: "required",
		},
		scopeTenant: true, scopePrincipal: true, scopeEndpoint: true,
		recipe:         recipe{inputs: []string{"method", "route", "params", "query", "body"}},
		mismatchStatus: 422,
		inFlight:       inFlightWait, wait: 25 * time.Second,
		retryWindow: day, skew: 5 * time.Minute, margin: time.Hour,
		releases:    releasesTransient,
		claimedName: "in_progress",
		maxBody:     1 << 20, maxResponse: 1 << 20,
	}
}

func (p *Profile) toWalker() {
	p.key.syntax, p.key.format, p.scopeTenant = "bare", "uuid4-lower", false
	p.recipe.exclude = []string{"/clientSubmittedAt"}
	p.mismatchStatus, p.reveal = 409, revealPayloadHashes
	p.form = formEnvelope
	p.wording = map[string]wording{
		"key-missing":          {code: "IDEMPOTENCY_KEY_REQUIRED"},
		"key-invalid":          {code: "IDEMPOTENCY_KEY_INVALID"},
		"key-ambiguous":        {code: "IDEMPOTENCY_KEY_INVALID"},
		"key-too-weak":         {code: "IDEMPOTENCY_KEY_INVALID"},
		"fingerprint-mismatch": {code: "IDEMPOTENCY_CONFLICT"},
		"in-flight":            {code: "IDEMPOTENCY_IN_FLIGHT"},
	}
	p.setLifetime(7*day, 6*time.Hour, 12*time.Hour, true)
	p.releases = releasesClientErrors
	p.guard = &guard{generatedAt: "/clientGeneratedAt", cap: 7 * day, grace: 6 * time.Hour}
}

func (p *Profile) toFeed() {
	p.key.syntax, p.key.format, p.scopeTenant = "bare", "token255", false
	p.key.requireHeaders = [][2]string{{"X-Client-Tx-Id", "token255"}}
	p.mintsMillis = true
	p.inFlight, p.wait, p.claimedName = inFlightReject, time.Second, "processing"
	p.form = formError
	p.wording = map[string]wording{
		"key-missing":          {text: "Missing Idempotency-Key header"},
		"key-invalid":          {text: "Invalid Idempotency-Key format"},
		"key-ambiguous":        {text: "Invalid Idempotency-Key format"},
		"fingerprint-mismatch": {text: "Idempotency key reused with different payload"},
		"in-flight":            {text: "Request already being processed"},
	}
	p.setLifetime(day, 0, 0, false)
	p.releases = releasesClientErrors
	p.admission = admission{count: 1000, window: time.Hour}
}

func (p *Profile) toMesh() {
	p.key.sources = []string{"json:/client_message_id", "header:Idempotency-Key"}
	p.key.syntax, p.key.presence, p.mintsULID = "bare", "mint", true
	p.scopePrincipal, p.scopeEndpoint = false, false
	p.recipe.inputs = append(p.recipe.inputs, "principal")
	p.mismatchStatus, p.reveal = 409, revealPrefix8
	p.inFlight, p.claimedName = inFlightAccepted, "inflight"
	p.form, p.wording = formMesh, map[string]wording{"fingerprint-mismatch": {code: "idempotency_key_reused"}}
	p.setLifetime(6*day, 0, day, false)
	p.releases = releasesClientErrors
	p.duplicate = 200
}

func (p *Profile) setLifetime(window, skew, margin time.Duration, fromCreation bool) {
	p.retryWindow, p.skew, p.margin, p.fromCreation = window, skew, margin, fromCreation
}

// WithRetryWindow sets the one number that users set: how long a client may go on retrying with one key. How long
// records live follows from it.
func (p Profile) WithRetryWindow(window time.Duration) Profile {
	// Clients that may be away for days deserve a margin of a day.
	if window > day && p.margin > 0 {
		p.margin = max(p.margin, day)
	}
	p.retryWindow = window
	return p
}

// WithWait sets how long a request waits for another one with its key, where the profile waits.
func (p Profile) WithWait(wait time.Duration) Profile {
	if p.inFlight == inFlightWait {
		p.wait = wait
	}
	return p
}

// lifetime is how long a record lives.
func (p *Profile) lifetime() time.Duration { return p.retryWindow + 2*p.skew + p.margin }

var transientStatuses = []int{401, 403, 408, 409, 425, 429, 503}

func releasesTransient(status int) bool    { return slices.Contains(transientStatuses, status) }
func releasesClientErrors(status int) bool { return status == 503 || status >= 400 && status <= 499 }

// ending is what becomes of the handler's transaction.
type ending int

const (
	// endCommit: the record is written and committed with the effect.
	endCommit ending = iota
	// endRollBack: nothing stays, the key is free, and the answer is handed on.
	endRollBack
	// endRefuse: nothing stays, since the handler contradicts itself: it says that an answer which cannot be recorded
	// took effect.
	endRefuse
)

// end is the one table of what an answer does to its transaction. outcome is what the handler itself says by
// Semel-Outcome: "", "applied" or "not-applied".
func (p *Profile) end(status int, outcome string) ending {
	switch {
	case outcome == "not-applied":
		return endRollBack
	case status >= 200 && status <= 499 && !p.releases(status):
		return endCommit
	case outcome == "applied":
		return endRefuse
	default:
		return endRollBack
	}
}
