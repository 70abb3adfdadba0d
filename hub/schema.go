package hub

import (
	"bytes"
	"errors"
	"reflect"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/parley-hub/parley/internal/jsonx"
)

// A schema is a compiled JSON Schema, which others wrote. References let a small one ask for more work than a machine
// can do, so a validation has a budget of visits of the schema's parts.
type schema struct {
	root *jsonschema.Schema

	mu   sync.Mutex // one validation at a time spends left
	left int
}

// Budget of a validation, for each byte of the content too. A visit takes less than a microsecond.
const (
	visits        = 1 << 16
	visitsPerByte = 16
)

var errBudget = errors.New("the schema asks for too much work")

// bounded makes each visit of the schema and its parts cost something.
func bounded(root *jsonschema.Schema) (*schema, error) {
	s := &schema{root: root}
	seen, list := map[*jsonschema.Schema]bool{}, []*jsonschema.Schema{root}
	for len(list) > 0 {
		part := list[len(list)-1]
		if list = list[:len(list)-1]; seen[part] {
			continue
		}
		seen[part] = true
		if part.DynamicRef != nil || part.RecursiveRef != nil { // what they refer to is known in a validation alone
			return nil, errors.New("$dynamicRef and $recursiveRef are not supported")
		}
		cost := 1 + len(part.AllOf) + len(part.AnyOf) + len(part.OneOf) + len(part.Properties) +
			len(part.PatternProperties)
		f := jsonschema.Format{}
		if part.Format != nil {
			f = *part.Format
		}
		check := f.Validate
		f.Validate = func(v any) error { // it is the check of each visit that comes before those of the parts
			if s.left -= cost; s.left < 0 {
				panic(errBudget)
			}
			if check == nil {
				return nil
			}
			return check(v)
		}
		part.Format = &f
		fields := reflect.ValueOf(part).Elem()
		for i := range fields.NumField() {
			if fields.Type().Field(i).IsExported() {
				list = partsIn(list, fields.Field(i))
			}
		}
	}
	return s, nil
}

// partsIn adds the schemas in a field of a schema.
func partsIn(list []*jsonschema.Schema, v reflect.Value) []*jsonschema.Schema {
	switch v.Kind() {
	case reflect.Pointer:
		if part, ok := v.Interface().(*jsonschema.Schema); ok && part != nil {
			list = append(list, part)
		}
	case reflect.Interface:
		list = partsIn(list, v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			list = partsIn(list, v.Index(i))
		}
	case reflect.Map:
		for i := v.MapRange(); i.Next(); {
			list = partsIn(list, i.Value())
		}
	}
	return list
}

// validate reports why JSON does not fit.
func (s *schema) validate(b []byte) (err error) {
	if err := jsonx.Valid(b, 0); err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = visits + visitsPerByte*len(b)
	defer func() {
		if p := recover(); p == errBudget {
			err = errBudget
		} else if p != nil {
			panic(p)
		}
	}()
	return s.root.Validate(v)
}
