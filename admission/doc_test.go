package admission

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"
)

// The program in the package comment is the compiled example, and what
// example_test.go imports is what the program imports.
func TestPackageCommentHoldsTheExample(t *testing.T) {
	source, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var program strings.Builder
	for line := range strings.Lines(string(source)) {
		if code, ok := strings.CutPrefix(line, "//\t"); ok {
			program.WriteString(code)
		} else if line == "//\n" {
			program.WriteString("\n")
		}
	}
	inComment, imports := mainOf(t, "the package comment", program.String(), "main")
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	compiled, compiledImports := mainOf(t, "example_test.go", string(example), "ExampleListener")
	if inComment != compiled {
		t.Errorf("the package comment has\n%s\nthe example is\n%s", inComment, compiled)
	}
	if !slices.Equal(imports, compiledImports) {
		t.Errorf("the package comment imports %v, the example %v", imports, compiledImports)
	}
}

// mainOf returns the body of the function and the imports of the source.
func mainOf(t *testing.T, name, source, function string) (body string, imports []string) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, source, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range file.Imports {
		imports = append(imports, i.Path.Value)
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == function {
			var b bytes.Buffer
			if err := format.Node(&b, files, f.Body); err != nil {
				t.Fatal(err)
			}
			return b.String(), imports
		}
	}
	t.Fatalf("%s has no function %s", name, function)
	return "", nil
}
