package bech32

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
)

// UAG-005, UAG-006: the shared vectors.
func TestVectors(t *testing.T) {
	dir := os.Getenv("PARLEY_VECTORS")
	if dir == "" {
		dir = "../../testdata/vectors"
	}
	b, err := os.ReadFile(dir + "/uagents/bech32.json")
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Cases []struct {
			Name  string
			Input struct {
				String *string
				HRP    string
				Data   string `json:"data_hex"`
			}
			Expect struct {
				OK     bool
				HRP    string
				Data   string `json:"data_hex"`
				String string
			}
		}
	}
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	for _, c := range f.Cases {
		t.Run(c.Name, func(t *testing.T) {
			if c.Input.String != nil {
				hrp, data, err := DecodeNoLimit(*c.Input.String)
				if (err == nil) != c.Expect.OK {
					t.Fatalf("err = %v, want ok %v", err, c.Expect.OK)
				}
				if err == nil && (hrp != c.Expect.HRP || hex.EncodeToString(data) != c.Expect.Data) {
					t.Fatalf("got %s %x", hrp, data)
				}
				return
			}
			data, err := hex.DecodeString(c.Input.Data)
			if err != nil {
				t.Fatal(err)
			}
			s, err := Encode(c.Input.HRP, data)
			if (err == nil) != c.Expect.OK || s != c.Expect.String {
				t.Fatalf("got %q, %v", s, err)
			}
		})
	}
}

func TestBounds(t *testing.T) {
	if _, err := Encode("", []byte{1}); !errors.Is(err, ErrHRP) {
		t.Errorf("empty part: %v", err)
	}
	if _, err := Encode("A", []byte{1}); !errors.Is(err, ErrHRP) {
		t.Errorf("upper-case part: %v", err)
	}
	if _, _, err := DecodeNoLimit(strings.Repeat("q", MaxLen+1)); !errors.Is(err, ErrText) {
		t.Errorf("too long: %v", err)
	}
}

func FuzzDecodeNoLimit(f *testing.F) {
	f.Add("agent1qv67jrczcvqdlqgw9xrca6z8z63kt2ksmnyzrw7fewwl939rsr3z6nq9xp9")
	f.Add("A12UEL5L")
	f.Fuzz(func(t *testing.T, s string) {
		hrp, data, err := DecodeNoLimit(s)
		if err != nil {
			return
		}
		again, err := Encode(hrp, data)
		if err != nil || again != strings.ToLower(s) {
			t.Fatalf("%q became %q, %v", s, again, err)
		}
		if _, d, err := DecodeNoLimit(again); err != nil || !bytes.Equal(d, data) {
			t.Fatalf("second reading: %x, %v", d, err)
		}
	})
}
