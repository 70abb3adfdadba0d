package policy

// Visible reports whether exposure and permission would let an agent of a
// protocol call a skill. It uses up no rate.
func (p *Policy) Visible(protocol, from string, to Recipient, skill string) bool {
	return p.exposed(protocol, to) && p.permitted(from, to.Agent.Name, skill)
}
