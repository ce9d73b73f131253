package semel

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON as the contract reads it: RFC 8259 in UTF-8, canonicalised by RFC 8785. This file parses and writes
// documents; it never decides what a body means.

// jsonDepthMax is the deepest document that is canonicalised; deeper bodies are fingerprinted raw.
const jsonDepthMax = 127

// jsonIntegerMax is the largest integer literal that survives a double.
const jsonIntegerMax = 1 << 53

var errNotJSON = errors.New("not JSON")

type jsonKind int

const (
	jsonNull jsonKind = iota
	jsonTrue
	jsonFalse
	jsonNumber
	jsonText
	jsonArray
	jsonObject
)

// jsonValue is one value. An object keeps its members in the order of the text; names[i] belongs to items[i].
type jsonValue struct {
	kind   jsonKind
	number float64
	text   string
	names  []string
	items  []*jsonValue
}

// jsonDocument is a parsed body, with what keeps it from being canonicalised.
type jsonDocument struct {
	root *jsonValue
	// repeatsName: an object has two members of one name, so readers disagree about what it says.
	repeatsName bool
	// losesInteger: an integer literal would not survive a double.
	losesInteger bool
}

// isCanonical tells whether the canonical text belongs to this document alone.
func (d *jsonDocument) isCanonical() bool { return !d.repeatsName && !d.losesInteger }

type jsonParser struct {
	text  string
	at    int
	depth int
	doc   *jsonDocument
}

// parseJSON reads a whole body.
func parseJSON(body []byte) (*jsonDocument, error) {
	if !utf8.Valid(body) {
		return nil, errNotJSON
	}
	doc := &jsonDocument{}
	p := &jsonParser{text: string(body), doc: doc}
	root, err := p.value()
	if err != nil {
		return nil, err
	}
	p.skipSpace()
	if p.at != len(p.text) {
		return nil, errNotJSON
	}
	doc.root = root
	return doc, nil
}

func (p *jsonParser) peek() byte {
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

func (p *jsonParser) skipSpace() {
	for p.at < len(p.text) && strings.IndexByte(" \t\n\r", p.text[p.at]) >= 0 {
		p.at++
	}
}

func (p *jsonParser) value() (*jsonValue, error) {
	p.skipSpace()
	switch c := p.peek(); {
	case c == '{':
		return p.nested(p.object)
	case c == '[':
		return p.nested(p.array)
	case c == '"':
		text, err := p.string()
		return &jsonValue{kind: jsonText, text: text}, err
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	case c == 't':
		return p.word("true", jsonTrue)
	case c == 'f':
		return p.word("false", jsonFalse)
	case c == 'n':
		return p.word("null", jsonNull)
	default:
		return nil, errNotJSON
	}
}

func (p *jsonParser) word(word string, kind jsonKind) (*jsonValue, error) {
	if !strings.HasPrefix(p.text[p.at:], word) {
		return nil, errNotJSON
	}
	p.at += len(word)
	return &jsonValue{kind: kind}, nil
}

func (p *jsonParser) nested(read func() (*jsonValue, error)) (*jsonValue, error) {
	p.depth++
	if p.depth > jsonDepthMax {
		return nil, errNotJSON
	}
	p.at++
	value, err := read()
	p.depth--
	return value, err
}

// goesOn tells whether a list goes on after an item, and steps over the comma or the closing byte.
func (p *jsonParser) goesOn(closing byte) (bool, error) {
	p.skipSpace()
	c := p.peek()
	p.at++
	if c != ',' && c != closing {
		return false, errNotJSON
	}
	return c == ',', nil
}

func (p *jsonParser) isEmpty(closing byte) bool {
	p.skipSpace()
	if p.peek() != closing {
		return false
	}
	p.at++
	return true
}

func (p *jsonParser) array() (*jsonValue, error) {
	list := &jsonValue{kind: jsonArray}
	if p.isEmpty(']') {
		return list, nil
	}
	for {
		item, err := p.value()
		if err != nil {
			return nil, err
		}
		list.items = append(list.items, item)
		if more, err := p.goesOn(']'); err != nil || !more {
			return list, err
		}
	}
}

func (p *jsonParser) object() (*jsonValue, error) {
	object := &jsonValue{kind: jsonObject}
	if p.isEmpty('}') {
		return object, nil
	}
	seen := map[string]bool{}
	for {
		p.skipSpace()
		if p.peek() != '"' {
			return nil, errNotJSON
		}
		name, err := p.string()
		if err != nil {
			return nil, err
		}
		p.skipSpace()
		if p.peek() != ':' {
			return nil, errNotJSON
		}
		p.at++
		item, err := p.value()
		if err != nil {
			return nil, err
		}
		p.doc.repeatsName = p.doc.repeatsName || seen[name]
		seen[name] = true
		object.names, object.items = append(object.names, name), append(object.items, item)
		if more, err := p.goesOn('}'); err != nil || !more {
			return object, err
		}
	}
}

func (p *jsonParser) digits() bool {
	from := p.at
	for p.at < len(p.text) && p.text[p.at] >= '0' && p.text[p.at] <= '9' {
		p.at++
	}
	return p.at > from
}

func (p *jsonParser) number() (*jsonValue, error) {
	from := p.at
	if p.peek() == '-' {
		p.at++
	}
	digitsFrom := p.at
	if p.peek() == '0' {
		p.at++
	} else if !p.digits() {
		return nil, errNotJSON
	}
	integer, isInteger := p.text[digitsFrom:p.at], true
	if p.peek() == '.' {
		p.at++
		isInteger = false
		if !p.digits() {
			return nil, errNotJSON
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		p.at++
		isInteger = false
		if c := p.peek(); c == '+' || c == '-' {
			p.at++
		}
		if !p.digits() {
			return nil, errNotJSON
		}
	}
	number, err := strconv.ParseFloat(p.text[from:p.at], 64)
	if err != nil || math.IsInf(number, 0) {
		return nil, errNotJSON
	}
	if isInteger {
		// More than 17 digits are beyond 2^53 in any case: JSON has no leading zeros.
		value, err := strconv.ParseUint(integer, 10, 64)
		if len(integer) > 17 || err != nil || value > jsonIntegerMax {
			p.doc.losesInteger = true
		}
	}
	return &jsonValue{kind: jsonNumber, number: number}, nil
}

func (p *jsonParser) string() (string, error) {
	p.at++
	var out strings.Builder
	for p.at < len(p.text) {
		c := p.text[p.at]
		switch {
		case c == '"':
			p.at++
			return out.String(), nil
		case c < 0x20:
			return "", errNotJSON
		case c == '\\':
			r, err := p.escape()
			if err != nil {
				return "", err
			}
			out.WriteRune(r)
		default:
			out.WriteByte(c)
			p.at++
		}
	}
	return "", errNotJSON
}

func (p *jsonParser) escape() (rune, error) {
	if p.at+1 >= len(p.text) {
		return 0, errNotJSON
	}
	c := p.text[p.at+1]
	p.at += 2
	if at := strings.IndexByte(`"\/bfnrt`, c); at >= 0 {
		return rune("\"\\/\b\f\n\r\t"[at]), nil
	}
	if c != 'u' {
		return 0, errNotJSON
	}
	first, err := p.hex4()
	if err != nil || !utf16.IsSurrogate(first) {
		return first, err
	}
	if !strings.HasPrefix(p.text[p.at:], `\u`) {
		return 0, errNotJSON
	}
	p.at += 2
	second, err := p.hex4()
	if err != nil {
		return 0, err
	}
	// An unpaired surrogate is no character.
	if pair := utf16.DecodeRune(first, second); pair != utf8.RuneError {
		return pair, nil
	}
	return 0, errNotJSON
}

func (p *jsonParser) hex4() (rune, error) {
	if p.at+4 > len(p.text) {
		return 0, errNotJSON
	}
	digits := p.text[p.at : p.at+4]
	if strings.ContainsAny(digits, "+-_") {
		return 0, errNotJSON
	}
	value, err := strconv.ParseUint(digits, 16, 16)
	if err != nil {
		return 0, errNotJSON
	}
	p.at += 4
	return rune(value), nil
}

// canonical writes a value as RFC 8785 says.
func (v *jsonValue) canonical() string {
	var out strings.Builder
	v.write(&out)
	return out.String()
}

func (v *jsonValue) write(out *strings.Builder) {
	switch v.kind {
	case jsonNull:
		out.WriteString("null")
	case jsonTrue:
		out.WriteString("true")
	case jsonFalse:
		out.WriteString("false")
	case jsonNumber:
		out.WriteString(formatNumber(v.number))
	case jsonText:
		writeJSONString(out, v.text)
	case jsonArray:
		out.WriteByte('[')
		for at, item := range v.items {
			if at > 0 {
				out.WriteByte(',')
			}
			item.write(out)
		}
		out.WriteByte(']')
	case jsonObject:
		v.writeMembers(out)
	}
}

func (v *jsonValue) writeMembers(out *strings.Builder) {
	order := make([]int, len(v.names))
	for at := range order {
		order[at] = at
	}
	slices.SortFunc(order, func(a, b int) int { return compareUTF16(v.names[a], v.names[b]) })
	out.WriteByte('{')
	for place, at := range order {
		if place > 0 {
			out.WriteByte(',')
		}
		writeJSONString(out, v.names[at])
		out.WriteByte(':')
		v.items[at].write(out)
	}
	out.WriteByte('}')
}

// compareUTF16 orders names by their UTF-16 code units. UTF-8 sorts alike, except where surrogate pairs meet the
// characters above them.
func compareUTF16(a, b string) int {
	return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
}

func writeJSONString(out *strings.Builder, text string) {
	const hexDigits = "0123456789abcdef"
	out.WriteByte('"')
	for at := 0; at < len(text); at++ {
		switch c := text[at]; {
		case c == '"' || c == '\\':
			out.WriteByte('\\')
			out.WriteByte(c)
		case c >= 0x20:
			out.WriteByte(c)
		default:
			if place := strings.IndexByte("\b\f\n\r\t", c); place >= 0 {
				out.WriteByte('\\')
				out.WriteByte("bfnrt"[place])
			} else {
				out.WriteString(`\u00`)
				out.WriteByte(hexDigits[c>>4])
				out.WriteByte(hexDigits[c&15])
			}
		}
	}
	out.WriteByte('"')
}

// formatNumber writes a double as ECMAScript does.
func formatNumber(number float64) string {
	if number == 0 {
		return "0"
	}
	if size := math.Abs(number); size >= 1e-6 && size < 1e21 {
		return strconv.FormatFloat(number, 'f', -1, 64)
	}
	text := strconv.FormatFloat(number, 'e', -1, 64)
	mantissa, exponent, _ := strings.Cut(text, "e")
	return mantissa + "e" + exponent[:1] + strings.TrimLeft(exponent[1:], "0")
}
