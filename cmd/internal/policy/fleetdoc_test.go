package policy

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The policies of docs/fleet.md are good ones, each of an edge with the store that
// it tells of.
func TestFleetDocument(t *testing.T) {
	page, err := os.ReadFile("../../../docs/fleet.md")
	if err != nil {
		t.Fatal(err)
	}
	schemes := map[string]string{"alone": "rediss://", "sentinel": "redis+sentinel://", "cluster": ""}
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n# (\\w+)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		name, text := block[1], block[2]
		scheme, known := schemes[name]
		if !known {
			t.Errorf("the policy %s is not known", name)
		}
		delete(schemes, name)
		p := load(t, text)
		if err := p.NeedEdge(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !p.Redis.Enabled() || !strings.HasPrefix(string(p.Redis.URL), scheme) || scheme == "" && p.Redis.URLFile == "" {
			t.Errorf("%s has the store %+v", name, p.Redis)
		}
	}
	for name := range schemes {
		t.Errorf("the page has no policy %s", name)
	}
}
