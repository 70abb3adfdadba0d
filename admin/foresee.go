package admin

// Foreseen says what would become of a message. Nothing was sent.
type Foreseen struct {
	From      string         `json:"from"`               // the agent as which it would be sent
	To        string         `json:"to"`                 // directory name of the recipient
	Protocol  string         `json:"protocol,omitzero"`  // by which it would leave
	Skill     string         `json:"skill,omitzero"`     // that would be called
	Schema    *SchemaVerdict `json:"schema,omitzero"`    // nil: the skill has no schema, or content of another form
	Losses    []string       `json:"losses,omitzero"`    // what the recipient's protocol cannot carry
	Recipient *AgentState    `json:"recipient,omitzero"` // of a recipient that is not ready
	Refused   *Problem       `json:"refused,omitzero"`   // why it would be refused at once
}

// A SchemaVerdict says whether content fits the schema of a skill.
type SchemaVerdict struct {
	Fits bool   `json:"fits"`
	Path string `json:"path,omitzero"` // JSON pointer to what does not fit: "/kg"
	Text string `json:"text,omitzero"` // what is wrong there
}
