package proxy

// barrenCost is what a TLS record of a client's that carries no data is charged, in
// bytes: a KeyUpdate that is to be answered takes as much of the processor as so
// many bytes of data do, and 27 on the way.
const barrenCost = 8 << 10

// records follows the TLS records that a client sends (RFC 8446, section 5.1), to
// tell those that carry no data: crypto/tls keeps them to itself.
type records struct {
	header [5]byte
	got    uint8  // bytes of the header
	left   uint16 // bytes of the body
	whole  uint32 // records that have come whole
	data   uint32 // reads that have brought data: no more than one for each record, where the reader has room
	barren uint32 // records without data that have been charged
	on     bool
}

// saw takes the next bytes of the stream.
func (r *records) saw(p []byte) {
	for len(p) > 0 {
		if r.left == 0 {
			n := copy(r.header[r.got:], p)
			r.got, p = r.got+uint8(n), p[n:]
			if int(r.got) < len(r.header) {
				return
			}
			r.left, r.got = uint16(r.header[3])<<8|uint16(r.header[4]), 0
		}
		n := min(len(p), int(r.left))
		r.left, p = r.left-uint16(n), p[n:]
		if r.left == 0 {
			r.whole++
		}
	}
}

// begin has those that come from here charged: the handshake is over.
func (r *records) begin() { r.whole, r.on = 0, true }

// due is what is to be charged for records without data, in bytes, once TLS has
// read all that came whole; of a stream without TLS, nothing.
func (r *records) due() int64 {
	fresh := int32(r.whole - r.data - r.barren)
	if !r.on || fresh <= 0 {
		return 0
	}
	r.barren += uint32(fresh)
	return int64(fresh) * barrenCost
}
