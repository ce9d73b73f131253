package semel

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// Answers: what a handler says, what is given again from the record, and the headers that mark both.

// Answer is what a handler says, and what every retry is told again.
type Answer struct {
	Status  int
	Headers [][2]string
	Body    []byte
	// Replayed: it was given again from the record, not made by this call.
	Replayed bool
}

// JSON is an answer with a JSON body.
func JSON(status int, value any) (Answer, error) {
	body, err := json.Marshal(value)
	return Answer{Status: status, Headers: [][2]string{{"content-type", "application/json"}}, Body: body}, err
}

// Header is the first value of a header.
func (a Answer) Header(name string) string {
	for _, line := range a.Headers {
		if strings.EqualFold(line[0], name) {
			return line[1]
		}
	}
	return ""
}

// mark adds what is promised about a keyed answer.
func (p *Profile) mark(answer Answer, guarantee string) Answer {
	answer.Headers = append(answer.Headers[:len(answer.Headers):len(answer.Headers)], [2]string{"semel-guarantee", guarantee})
	if guarantee != "none" {
		seconds := strconv.FormatInt(int64(p.retryWindow.Seconds()), 10)
		answer.Headers = append(answer.Headers, [2]string{"semel-retention", seconds})
	}
	return answer
}

// replay is the answer of a settled record, marked as given again.
func (p *Profile) replay(row *row) (Answer, error) {
	headers, err := unpackHeaders(row.headers)
	if err != nil {
		return Answer{}, err
	}
	answer := Answer{Status: row.status, Headers: headers, Body: row.body, Replayed: true}
	if row.outcomeUnknown {
		answer.Headers = append(answer.Headers, [2]string{"semel-outcome", "unknown"})
	} else if p.duplicate != 0 && row.status < 400 {
		answer.Status, answer.Body = p.duplicate, sayAgain(row.body)
	}
	answer.Headers = append(answer.Headers, [2]string{"idempotency-replayed", "true"})
	if p.stripeHeaders {
		answer.Headers = append(answer.Headers, [2]string{"idempotent-replayed", "true"})
	}
	return p.mark(answer, row.guarantee), nil
}

// sayAgain adds the member that tells a repeated JSON object from the first one; everything else stays as it is.
func sayAgain(body []byte) []byte {
	text := bytes.TrimSpace(body)
	var members map[string]json.RawMessage
	if !bytes.HasPrefix(text, []byte("{")) || json.Unmarshal(text, &members) != nil {
		return body
	}
	if _, has := members["duplicate"]; has {
		return body
	}
	separator := ","
	if len(members) == 0 {
		separator = ""
	}
	return append(append([]byte{}, text[:len(text)-1]...), separator+`"duplicate":true}`...)
}

// acceptedAnswer tells that the first attempt is still under way. It is no acknowledgement: that attempt may still end
// without an effect.
func (p *Profile) acceptedAnswer() Answer {
	return Answer{
		Status:  202,
		Headers: [][2]string{{"content-type", "application/json"}, {"semel-outcome", "pending"}, {"retry-after", "1"}},
		Body:    encodeJSON(map[string]any{"status": p.claimedName}),
	}
}
