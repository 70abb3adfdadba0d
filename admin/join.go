package admin

// A Join says how agents of a protocol join the hub.
type Join struct {
	Protocol string
	Ways     []JoinWay
	// Shown are the fields of what the hub shows to an agent elsewhere, and Secrets makes the credentials of their
	// values; nil: none are set.
	Shown   []JoinField
	Secrets func(JoinValues) (Secret, error)
	// NewToken makes a token for a way that needs one. The hub gets its id only. nil: no way does.
	NewToken func() (token, id string, err error)
}

// A JoinWay is a way in which agents of a protocol join: the hub calls them, for example, or they call the hub.
type JoinWay struct {
	Name   string // "": the protocol's first
	Title  string
	Fields []JoinField
	// Identity makes the identity of an agent of that name from the fields' values. The hub has not read anything yet.
	Identity func(name string, v JoinValues) (NewIdentity, error)
	// Command are the flags of `parley agents add` for the values.
	Command func(v JoinValues) string

	Token bool // the agent gets a new token of the protocol, which Values has as its digest in "token-id"
	Shows bool // the hub may show credentials to the agent
	Reads bool // the hub reads what the agent says of itself
}

// A JoinField is one value that describes an agent: a flag of `parley agents add`, or an input of a form.
type JoinField struct {
	Flag    string
	Label   string
	Text    string // one line: what it is; the help of the flag
	Example string
	Type    string // of the input: "url", "password", or "area" for several lines; "": text
	Must    bool
}

// JoinValues are the values of fields by flag.
type JoinValues map[string]string

// Way finds a way of the protocol by its name; nil: there is none.
func (j *Join) Way(name string) *JoinWay {
	for i := range j.Ways {
		if j.Ways[i].Name == name {
			return &j.Ways[i]
		}
	}
	return nil
}

// Joins are the protocols in which agents join, in the order of the tables.
func (a *Admin) Joins() []Join { return a.c.Workbench.Joins }
