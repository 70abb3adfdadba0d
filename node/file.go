package node

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/parley-hub/parley/internal/spelling"
)

// DefaultData is the default data directory.
const DefaultData = "parley-data"

// Load reads a configuration file. A name that does not exist, a value of the
// wrong type or a contradiction is an error that says the line. Relative paths
// in the file are relative to its directory.
func Load(path string) (Config, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	c, err := decodeFile(b)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, explainTOML(err))
	}
	files := []*string{&c.Data, &c.Engine.Credentials, &c.Engine.KeyFile, &c.TLS.Cert, &c.TLS.Key, &c.Alerts.Token}
	for _, list := range [][]string{c.TLS.CA, c.TLS.ClientCA} {
		for i := range list {
			files = append(files, &list[i])
		}
	}
	for i := range c.Callers.Issuers {
		files = append(files, &c.Callers.Issuers[i].JWKSFile)
	}
	for _, p := range Protocols {
		if p.Files != nil {
			files = append(files, p.Files(&c)...)
		}
	}
	for _, f := range files {
		if *f != "" && !filepath.IsAbs(*f) {
			*f = filepath.Join(filepath.Dir(path), *f)
		}
	}
	if _, err := c.check(); err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, placed(err, b))
	}
	c.lines = readLines(path, b)
	return c, nil
}

// decodeFile decodes the text of a file: first into the form, which has all keys, then into a [Config]. The tables
// of protocols without a field in Config are taken from the form.
func decodeFile(text []byte) (c Config, err error) {
	file := reflect.New(fileType())
	if err := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(file.Interface()); err != nil {
		return c, err
	}
	if err := toml.Unmarshal(text, &c); err != nil {
		return c, err
	}
	for _, p := range withoutField(reflect.TypeFor[Config]()) {
		if v := file.Elem().FieldByName(formField(p)); !v.IsNil() {
			reflect.ValueOf(p.Section(&c)).Elem().Set(v.Elem())
		}
	}
	for _, p := range withoutField(reflect.TypeFor[Agent]()) {
		for it := file.Elem().FieldByName("Agents").MapRange(); it.Next(); {
			a := c.Agents[it.Key().String()]
			reflect.ValueOf(p.Agent(&a)).Elem().Set(it.Value().FieldByName(formField(p)))
			c.Agents[it.Key().String()] = a
		}
	}
	return c, nil
}

// fileType is the form of the file: a struct with the keys of [Config], and a pointer to the table of each protocol
// that has no field there. Agents have the same form.
func fileType() reflect.Type {
	agent := formType(reflect.TypeFor[Agent](), nil,
		func(p *Protocol) reflect.Type { return reflect.TypeOf(p.Agent(&Agent{})).Elem() })
	return formType(reflect.TypeFor[Config](), agent,
		func(p *Protocol) reflect.Type { return reflect.TypeOf(p.Section(&Config{})) })
}

// formType makes the type of the form: a struct with the tables of the protocols in place
// of Sections.
func formType(t, agent reflect.Type, section func(*Protocol) reflect.Type) reflect.Type {
	var fields []reflect.StructField
	for i := range t.NumField() {
		switch f := t.Field(i); {
		case f.Name == "Sections":
			for _, p := range withoutField(t) {
				fields = append(fields, reflect.StructField{Name: formField(p), Type: section(p),
					Tag: reflect.StructTag(fmt.Sprintf("toml:%q", p.Name))})
			}
		case f.Name == "Agents":
			fields = append(fields, reflect.StructField{Name: f.Name,
				Type: reflect.MapOf(reflect.TypeFor[string](), agent), Tag: f.Tag})
		case isKey(f):
			fields = append(fields, reflect.StructField{Name: f.Name, Type: f.Type, Tag: f.Tag})
		}
	}
	return reflect.StructOf(fields)
}

// withoutField gives the protocols whose table is not a field of the struct.
func withoutField(t reflect.Type) (out []*Protocol) {
	tables := map[string]bool{}
	for i := range t.NumField() {
		tables[t.Field(i).Tag.Get("toml")] = true
	}
	return slices.DeleteFunc(slices.Clone(Protocols), func(p *Protocol) bool { return tables[p.Name] })
}

func formField(p *Protocol) string { return "Section_" + p.Name }

func isKey(f reflect.StructField) bool { return f.Tag.Get("toml") != "-" && f.Tag.Get("toml") != "" }

// misfit matches the decoder's error for a value of the wrong type.
var misfit = regexp.MustCompile(`cannot decode TOML (\S+) into`)

// explainTOML names line and column, and for an unknown key the nearest known key.
func explainTOML(err error) error {
	if strict, ok := errors.AsType[*toml.StrictMissingError](err); ok && len(strict.Errors) > 0 {
		e := strict.Errors[0]
		row, _ := e.Position()
		key := []string(e.Key())
		text := fmt.Sprintf("line %d: unknown key %q", row, strings.Join(key, "."))
		if near := nearest(key); near != "" {
			text += fmt.Sprintf("; did you mean %q?", near)
		}
		return errors.New(text)
	}
	if d, ok := errors.AsType[*toml.DecodeError](err); ok {
		row, column := d.Position()
		if m := misfit.FindStringSubmatch(d.Error()); m != nil && len(d.Key()) > 0 {
			key, want := strings.Join(d.Key(), "."), "a table"
			if i := slices.IndexFunc(Keys(), func(k Key) bool { return k.Name == key }); i >= 0 {
				want = Keys()[i].Type
			}
			return fmt.Errorf("line %d, column %d: %q wants %s, not %s", row, column, key, want, m[1])
		}
		return fmt.Errorf("line %d, column %d: %s", row, column, strings.TrimPrefix(d.Error(), "toml: "))
	}
	return err
}

// A Key of the configuration file, for `parley config describe`.
type Key struct {
	Name string // "listen.http"; the parts of tables with free names are <name>
	Type string
	Doc  string

	Default string `json:",omitzero"` // as it stands in the file
	Example string `json:",omitzero"` // of a key without a default that must be set
	Reload  bool   // `parley config reload` applies a change; others need a restart
}

// Keys lists all keys of the file, in the order of their declaration.
func Keys() []Key { return keysOf(fileType(), "Config", "") }

// keysOf lists the keys of a struct, whose type has a name in this package or elsewhere, and
// of the structs that it embeds. The text about a key is the comment of its field; a protocol of
// another package has it in the tag doc, for this package does not know its source.
func keysOf(t reflect.Type, name, prefix string) []Key {
	var out []Key
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			out = append(out, keysOf(f.Type, f.Type.Name(), prefix)...)
			continue
		}
		if !isKey(f) {
			continue
		}
		ft := f.Type
		path := prefix + f.Tag.Get("toml")
		doc := f.Tag.Get("doc")
		if doc == "" {
			doc = fieldDoc(name + "." + f.Name)
		}
		for ft.Kind() == reflect.Pointer {
			ft = ft.Elem()
		}
		switch {
		case ft == reflect.TypeFor[Duration]():
			out = append(out, key(path, "duration", doc, f.Tag))
		case ft.Kind() == reflect.Struct:
			out = append(out, keysOf(ft, ft.Name(), path+".")...)
		case ft.Kind() == reflect.Map:
			out = append(out, keysOf(ft.Elem(), cmp.Or(ft.Elem().Name(), "Agent"), path+".<name>.")...)
		case ft.Kind() == reflect.Slice && ft.Elem().Kind() == reflect.Struct:
			out = append(out, keysOf(ft.Elem(), ft.Elem().Name(), path+"[].")...)
		default:
			out = append(out, key(path, strings.ReplaceAll(ft.String(), "[]", "list of "), doc, f.Tag))
		}
	}
	return out
}

func key(name, kind, doc string, t reflect.StructTag) Key {
	return Key{Name: name, Type: kind, Doc: doc, Default: t.Get("default"), Example: t.Get("example"),
		Reload: t.Get("reload") != "" ||
			strings.HasPrefix(name, "agents.")}
}

// nearest finds the known key whose spelling is nearest to an unknown key.
func nearest(key []string) string {
	best, found := 0, ""
	last := key[len(key)-1]
	try := func(d, handicap int, name []string) {
		if d <= max(1, len(last)/2) && (found == "" || d+handicap < best) {
			best, found = d+handicap, strings.Join(name, ".")
		}
	}
	for _, k := range Keys() {
		name := strings.Split(strings.ReplaceAll(k.Name, "[]", ""), ".")
		if i := slices.Index(name, "<name>"); i >= 0 && len(key) > i {
			name[i] = key[i]
		}
		// The table may be misspelt.
		head := name[:min(len(name), len(key))]
		try(spelling.Distance(strings.Join(key, "."), strings.Join(head, ".")), 0, head)
		// A key of an inline table may be misspelt: the error has only its last part.
		if len(key) > 1 && len(name) > len(key) && slices.Equal(name[:len(key)-1], key[:len(key)-1]) {
			try(spelling.Distance(last, name[len(name)-1]), 1, name)
		}
	}
	return found
}
