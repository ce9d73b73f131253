package semel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Headers of requests and answers: reading lines, and packing what is kept of an answer.

// headerLines are the header lines of a request, as received.
type headerLines [][2]string

func (h headerLines) values(name string) []string {
	var values []string
	for _, line := range h {
		if strings.EqualFold(line[0], name) {
			values = append(values, line[1])
		}
	}
	return values
}

// one is the value of a header that is there exactly once, without the space around it; nil otherwise.
func (h headerLines) one(name string) *string {
	values := h.values(name)
	if len(values) != 1 {
		return nil
	}
	value := strings.Trim(values[0], " \t")
	return &value
}

// neverKept are headers of an answer that belong to one connection, one moment or one person. Those that begin with
// "proxy-" are not kept either, nor are semel's own, which begin with "semel-".
var neverKept = []string{
	"authorization", "connection", "content-length", "date", "keep-alive", "set-cookie", "set-cookie2", "te", "traceparent", "tracestate", "trailer", "transfer-encoding",
	"upgrade", "www-authenticate", "authentication-info",
}

// filterHeaders returns what is kept of an answer's headers, names in lower case, in their order.
func filterHeaders(headers [][2]string) [][2]string {
	var dropped []string
	for _, line := range headers {
		if strings.EqualFold(line[0], "connection") {
			for _, name := range strings.Split(line[1], ",") {
				dropped = append(dropped, strings.ToLower(strings.Trim(name, " \t")))
			}
		}
	}
	var kept [][2]string
	for _, line := range headers {
		name := strings.ToLower(line[0])
		isAside := strings.HasPrefix(name, "semel-") || strings.HasPrefix(name, "proxy-")
		if isAside || slices.Contains(neverKept, name) || slices.Contains(dropped, name) {
			continue
		}
		kept = append(kept, [2]string{name, line[1]})
	}
	return kept
}

// packHeaders writes headers as the store keeps them: for each the length of the name (2 bytes), the name, the length
// of the value (4 bytes), the value.
func packHeaders(headers [][2]string) ([]byte, error) {
	packed := []byte{}
	for _, line := range headers {
		if !headerName.MatchString(line[0]) || strings.IndexFunc(line[1], isForbidden) >= 0 {
			return nil, fmt.Errorf("semel: the header %q cannot be sent", line[0])
		}
		packed = append(binary.BigEndian.AppendUint16(packed, uint16(len(line[0]))), line[0]...)
		packed = append(binary.BigEndian.AppendUint32(packed, uint32(len(line[1]))), line[1]...)
	}
	return packed, nil
}

var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9a-z-]+$")

// isForbidden tells of characters that no header's value may have.
func isForbidden(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }

var errBadHeaders = errors.New("semel: the record's headers cannot be read")

// unpackHeaders reads what packHeaders wrote.
func unpackHeaders(packed []byte) ([][2]string, error) {
	var headers [][2]string
	take := func(count int) (string, bool) {
		if len(packed) < count {
			return "", false
		}
		part := string(packed[:count])
		packed = packed[count:]
		return part, true
	}
	for len(packed) > 0 {
		var line [2]string
		for part, width := range []int{2, 4} {
			length, isThere := take(width)
			if !isThere {
				return nil, errBadHeaders
			}
			size := 0
			for at := 0; at < len(length); at++ {
				size = size<<8 | int(length[at])
			}
			if line[part], isThere = take(size); !isThere {
				return nil, errBadHeaders
			}
		}
		headers = append(headers, line)
	}
	return headers, nil
}
