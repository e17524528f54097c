package service

import "testing"

func TestCalm(t *testing.T) {
	const mb = 1 << 20
	type look struct {
		allocated, heap uint64
		due             bool
	}
	for _, row := range []struct {
		name  string
		looks []look
	}{
		{"a start that allocates less than is worth it", []look{{mb - 1, mb - 1, false}, {mb - 1, mb - 1, false}}},
		{"a burst, and rest behind it", []look{{64 * mb, 64 * mb, false}, {64 * mb, 64 * mb, true}}},
		{"rest is a sixty-fourth", []look{{64 * mb, 64 * mb, false}, {65 * mb, 64 * mb, true}}},
		{"and not more", []look{{64 * mb, 64 * mb, false}, {65*mb + 1, 64 * mb, false}}},
		{"once for a burst", []look{{64 * mb, 64 * mb, false}, {64 * mb, 64 * mb, true}, {64 * mb, 40 * mb, false}}},
		{"work that goes on slowly collects an eighth first", []look{
			{64 * mb, 64 * mb, false}, {64 * mb, 64 * mb, true},
			{68 * mb, 64 * mb, false}, {68 * mb, 64 * mb, false},
			{72 * mb, 64 * mb, false}, {72 * mb, 64 * mb, true},
		}},
		{"a little is given back after some looks", []look{
			{64 * mb, 64 * mb, false}, {64 * mb, 64 * mb, true},
			{64*mb + 65536, 64 * mb, false}, {64*mb + 65536, 64 * mb, false}, {64*mb + 65536, 64 * mb, false}, {64*mb + 65536, 64 * mb, true},
		}},
		{"nothing never", []look{
			{64 * mb, 64 * mb, false}, {64 * mb, 64 * mb, true},
			{64*mb + 65535, 64 * mb, false}, {64*mb + 65535, 64 * mb, false}, {64*mb + 65535, 64 * mb, false}, {64*mb + 65535, 64 * mb, false}, {64*mb + 65535, 64 * mb, false},
		}},
		{"under load never", []look{{64 * mb, 64 * mb, false}, {128 * mb, 64 * mb, false}, {192 * mb, 64 * mb, false}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var c calm
			for i, l := range row.looks {
				due := c.due(l.allocated, l.heap)
				if due != l.due {
					t.Fatalf("look %d: due is %v", i+1, due)
				}
				if due {
					c.given(l.allocated)
				}
			}
		})
	}
}
