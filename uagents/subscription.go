package uagents

// AgentSubscriptionProtocol 0.2.0.

// TierType is free, plus or pro.
type TierType string

// EnumValues implements [Enumerated].
func (TierType) EnumValues() []string { return []string{"free", "plus", "pro"} }

// Tier is a level of subscription.
type Tier struct {
	TierID   string   `json:"tier_id"`
	TierType TierType `json:"tier_type"`
	Amount   string   `json:"amount"`
	Currency string   `json:"currency"`
}

// RequestAgentSubscriptionRenewal asks to renew a tier.
type RequestAgentSubscriptionRenewal struct {
	UpdateID string `json:"update_id"`
	Tier     Tier   `json:"tier"`
}

// RequestAgentSubscriptionUpgrade asks for another tier.
type RequestAgentSubscriptionUpgrade struct {
	UpdateID             string `json:"update_id"`
	NewSubscription      Tier   `json:"new_subscription"`
	ExistingSubscription *Tier  `json:"existing_subscription"`
}

// AcceptAgentSubscriptionUpdate grants a request.
type AcceptAgentSubscriptionUpdate struct {
	UpdateID string `json:"update_id"`
}

// RejectAgentSubscriptionUpdate declines a request.
type RejectAgentSubscriptionUpdate struct {
	UpdateID string `json:"update_id"`
}

// SubscriptionProtocol is AgentSubscriptionProtocol 0.2.0, with the roles
// requester and agent.
func SubscriptionProtocol() *Protocol {
	renew, upgrade := ModelOf[RequestAgentSubscriptionRenewal](), ModelOf[RequestAgentSubscriptionUpgrade]()
	accept, reject := ModelOf[AcceptAgentSubscriptionUpdate](), ModelOf[RejectAgentSubscriptionUpdate]()
	return &Protocol{
		Name: "AgentSubscriptionProtocol", Version: "0.2.0",
		Interactions: []Interaction{
			{renew, []*Model{accept, reject}},
			{upgrade, []*Model{accept, reject}},
			{accept, nil}, {reject, nil},
		},
		Roles: map[string][]*Model{"requester": {accept, reject}, "agent": {renew, upgrade}},
	}
}
