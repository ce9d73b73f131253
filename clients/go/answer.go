package semel

// Answer is what a handler says, and what is repeated to every retry.
type Answer struct {
	Status  int
	Headers [][2]string
	Body    []byte
}
