package relayedge_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// pages are README.md, CHANGELOG.md and what lies below docs.
func pages(t *testing.T) []string {
	t.Helper()
	all := []string{"README.md", "CHANGELOG.md"}
	err := filepath.WalkDir("docs", func(file string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(file, ".md") {
			all = append(all, filepath.ToSlash(file))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var (
	fenced = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	quoted = regexp.MustCompile("`[^`\n]+`")
	link   = regexp.MustCompile(`\]\(([^()\s]+)\)`)
)

// prose is a page without what is quoted from elsewhere.
func prose(page string) string {
	return quoted.ReplaceAllString(fenced.ReplaceAllString(page, ""), "")
}

// anchors are the names by which a page's headings can be linked to.
func anchors(page string) (all []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		words := regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, strings.ReplaceAll(words, " ", "-"))
	}
	return all
}

// brokenLinks are the links of a page into this repository that lead nowhere.
func brokenLinks(file, page string, read func(string) (string, error)) (broken []string) {
	for _, m := range link.FindAllStringSubmatch(prose(page), -1) {
		if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
			continue
		}
		to, anchor, anchored := strings.Cut(m[1], "#")
		there, err := page, error(nil)
		if to != "" {
			there, err = read(path.Join(path.Dir(file), to))
		}
		if err != nil || anchored && !slices.Contains(anchors(there), anchor) {
			broken = append(broken, m[1])
		}
	}
	return broken
}

// Every link of the documents that stays in this repository leads somewhere.
func TestLinks(t *testing.T) {
	read := func(file string) (string, error) {
		if info, err := os.Stat(file); err != nil || info.IsDir() {
			return "", err
		}
		b, err := os.ReadFile(file)
		return string(b), err
	}
	linked := map[string]bool{}
	for _, file := range pages(t) {
		page, err := read(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range brokenLinks(file, page, read) {
			t.Errorf("%s links to %s, which is not there", file, to)
		}
		for _, m := range link.FindAllStringSubmatch(prose(page), -1) {
			to, _, _ := strings.Cut(m[1], "#")
			linked[path.Join(path.Dir(file), to)] = true
		}
	}
	for _, file := range pages(t) {
		if strings.HasPrefix(file, "docs/") && !linked[file] {
			t.Errorf("no document links to %s", file)
		}
	}

	made := map[string]string{"docs/b.md": "# One, two\n"}
	got := brokenLinks("docs/a.md", "# Here\n[1](b.md) [2](b.md#one-two) [3](b.md#three) [4](c.md) [5](#here) [6](#there) [7](../docs/b.md)\n```\n[8](d.md)\n```\n`[9](e.md)` [0](https://example.org/x)\n",
		func(file string) (string, error) {
			if text, ok := made[file]; ok {
				return text, nil
			}
			return "", fs.ErrNotExist
		})
	if want := []string{"b.md#three", "c.md", "#there"}; !slices.Equal(got, want) {
		t.Errorf("of made-up links %q are broken, want %q", got, want)
	}
}

var (
	caseRow   = regexp.MustCompile(`(?m)^\| (\d+) \| ([^|]+) \| ([^|]+) \|$`)
	casePart  = regexp.MustCompile("^`([a-z0-9/]+)`: ((?:Test[A-Za-z0-9]+, )*Test[A-Za-z0-9]+)$")
	untested  = regexp.MustCompile(`(?m)^- (\d+): `)
	caseCount = 78
)

// faultsOfCases are what is wrong with a table of cases, by the tests that there are.
func faultsOfCases(page string, tests map[string]bool) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	table, below, found := strings.Cut(page, "\n## What no test holds\n")
	var excepted []string
	if found {
		for _, m := range untested.FindAllStringSubmatch(below, -1) {
			excepted = append(excepted, m[1])
		}
	}
	next := 1
	for _, row := range caseRow.FindAllStringSubmatch(table, -1) {
		if row[1] != strconv.Itoa(next) {
			fault("after case %d comes %s", next-1, row[1])
		}
		next++
		if row[3] == "none: see below" {
			if !slices.Contains(excepted, row[1]) {
				fault("case %s has no test, and nothing is said of it", row[1])
			}
			continue
		}
		if slices.Contains(excepted, row[1]) {
			fault("case %s has tests, and is said to have none", row[1])
		}
		for part := range strings.SplitSeq(row[3], "; ") {
			m := casePart.FindStringSubmatch(part)
			if m == nil {
				fault("case %s: %q is no list of tests", row[1], part)
				continue
			}
			for name := range strings.SplitSeq(m[2], ", ") {
				if !tests[m[1]+"."+name] {
					fault("case %s: there is no test %s in %s", row[1], name, m[1])
				}
			}
		}
	}
	if next != caseCount+1 {
		fault("the table has %d cases, want %d", next-1, caseCount)
	}
	return faults
}

// The table of field cases names tests that exist, and leaves no case out.
func TestCasesDocument(t *testing.T) {
	page, err := os.ReadFile("docs/cases.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := testsByPackage(t)
	for _, fault := range faultsOfCases(string(page), tests) {
		t.Error(fault)
	}

	defer func(n int) { caseCount = n }(caseCount)
	caseCount = 5
	tests = map[string]bool{"a.TestOne": true, "b/c.TestTwo": true}
	const made = "| 1 | x | `a`: TestOne; `b/c`: TestTwo |\n| 2 | x | none: see below |\n| 3 | x | `a`: TestOne, TestTwo |\n| 5 | x | by hand |\n| 6 | x | none: see below |\n\n## What no test holds\n\n- 2: so it is\n- 1: not so\n"
	want := []string{
		"case 1 has tests, and is said to have none", "case 3: there is no test TestTwo in a", "after case 3 comes 5",
		`case 5: "by hand" is no list of tests`, "after case 4 comes 6", "case 6 has no test, and nothing is said of it",
	}
	if got := faultsOfCases(made, tests); !slices.Equal(got, want) {
		t.Errorf("a made-up table has the faults\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	caseCount = 1
	if got := faultsOfCases("", tests); !slices.Equal(got, []string{"the table has 0 cases, want 1"}) {
		t.Errorf("an empty table has the faults %q", got)
	}
}

// Every test that a document names exists somewhere, and so does every file of code.
func TestNamedTestsAndFilesExist(t *testing.T) {
	tests := testsByPackage(t)
	anywhere := map[string]bool{}
	for name := range tests {
		anywhere[name[strings.LastIndexByte(name, '.')+1:]] = true
	}
	named, files := 0, 0
	for _, file := range pages(t) {
		page, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\bTest[A-Z][A-Za-z0-9]+\b`).FindAllString(string(page), -1) {
			named++
			if !anywhere[m] {
				t.Errorf("%s names %s, which is no test", file, m)
			}
		}
		for _, m := range regexp.MustCompile("`([a-z0-9_]+/[a-z0-9_/]*[a-z0-9_]\\.(?:go|txtar))`").FindAllStringSubmatch(string(page), -1) {
			files++
			if _, err := os.Stat(m[1]); err != nil {
				t.Errorf("%s names %s: %v", file, m[1], err)
			}
		}
	}
	if named < 200 || files < 5 {
		t.Errorf("only %d tests and %d files are named", named, files)
	}
}

// testsByPackage are all tests of this repository, as folder.TestName.
func testsByPackage(t *testing.T) map[string]bool {
	t.Helper()
	tests := map[string]bool{}
	for _, file := range testFiles(t) {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" {
				tests[path.Dir(file)+"."+f.Name.Name] = true
			}
		}
	}
	if len(tests) < 100 {
		t.Fatalf("only %d tests were found", len(tests))
	}
	return tests
}

func testFiles(t *testing.T) (files []string) {
	t.Helper()
	for _, e := range imports(t) {
		if e.test && !slices.Contains(files, e.file) {
			files = append(files, e.file)
		}
	}
	return files
}
