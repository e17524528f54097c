package clienthello

// Types of extensions: RFC 6066, section 3, and RFC 7301, section 3.1.
const (
	extensionServerName = 0
	extensionALPN       = 16

	nameTypeHost = 0
)

// parse reads the body of a ClientHello (RFC 8446, section 4.1.2). It is as
// strict as its syntax: lengths must fit, an extension stands once, names are
// not empty. What other extensions hold is for who ends TLS to judge.
func parse(body []byte) (Hello, error) {
	var h Hello
	b := reader(body)
	_, ok := b.take(2 + 32) // legacy_version, random
	session, ok1 := b.vector(1)
	suites, ok2 := b.vector(2)
	compression, ok3 := b.vector(1)
	if !ok || !ok1 || !ok2 || !ok3 || len(session) > 32 || len(suites) == 0 || len(suites)%2 != 0 || len(compression) == 0 {
		return Hello{}, ErrMalformed
	}
	if len(b) == 0 {
		return h, nil // before TLS 1.3 a hello may go without extensions
	}
	extensions, ok := b.vector(2)
	if !ok || len(b) != 0 {
		return Hello{}, ErrMalformed
	}
	var seen set
	for len(extensions) > 0 {
		kind, ok := extensions.number(2)
		data, ok1 := extensions.vector(2)
		if !ok || !ok1 || !seen.add(uint16(kind)) {
			return Hello{}, ErrMalformed
		}
		switch kind {
		case extensionServerName:
			h.ServerName, ok = parseServerName(data)
		case extensionALPN:
			h.Protocols, ok = parseProtocols(data)
		}
		if !ok {
			return Hello{}, ErrMalformed
		}
	}
	return h, nil
}

// parseServerName takes the one host name of a list; entries of other types are
// skipped, as none has ever been defined.
func parseServerName(data reader) (name string, ok bool) {
	list, ok := data.vector(2)
	if !ok || len(data) != 0 || len(list) == 0 {
		return "", false
	}
	for len(list) > 0 {
		kind, ok := list.number(1)
		entry, ok1 := list.vector(2)
		if !ok || !ok1 || len(entry) == 0 {
			return "", false
		}
		if kind != nameTypeHost {
			continue
		}
		if name != "" {
			return "", false // RFC 6066: no more than one name of a type
		}
		name = string(entry)
	}
	return name, true
}

func parseProtocols(data reader) (protocols []string, ok bool) {
	list, ok := data.vector(2)
	if !ok || len(data) != 0 || len(list) == 0 {
		return nil, false
	}
	for len(list) > 0 {
		p, ok := list.vector(1)
		if !ok || len(p) == 0 {
			return nil, false
		}
		protocols = append(protocols, string(p))
	}
	return protocols, true
}

// reader takes fields off the front of a message.
type reader []byte

func (b *reader) take(n int) (reader, bool) {
	if len(*b) < n {
		return nil, false
	}
	taken := (*b)[:n]
	*b = (*b)[n:]
	return taken, true
}

// number takes a big-endian number of size bytes.
func (b *reader) number(size int) (n int, ok bool) {
	field, ok := b.take(size)
	for _, c := range field {
		n = n<<8 | int(c)
	}
	return n, ok
}

// vector takes a length of size bytes, and as many bytes.
func (b *reader) vector(size int) (reader, bool) {
	n, ok := b.number(size)
	if !ok {
		return nil, false
	}
	return b.take(n)
}

// set holds the types of extensions that were seen: those of everyday use in a
// word, since a hello may list 16,000 and a search among them all would be
// quadratic.
type set struct {
	small uint64
	large map[uint16]struct{}
}

// add reports whether n is new.
func (s *set) add(n uint16) bool {
	if n < 64 {
		twice := s.small&(1<<n) != 0
		s.small |= 1 << n
		return !twice
	}
	if _, twice := s.large[n]; twice {
		return false
	}
	if s.large == nil {
		s.large = make(map[uint16]struct{})
	}
	s.large[n] = struct{}{}
	return true
}
