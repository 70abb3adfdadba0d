package asp

import (
	"cmp"
	"slices"
)

// Trust, concepts/trust-scoring. The server computes a score from components that
// the operator vouches for; it ignores the claims of messages and cards. The
// vendor's pages do not show growth, decay and the thresholds of the levels: growth
// and decay are left to the operator, the thresholds are in [trustLevel] (project).

// TrustComponents are the eight parts of a score, each 0 to 100.
type TrustComponents struct {
	IdentityVerification  float64 `json:"identityVerification"`
	CommunicationHistory  float64 `json:"communicationHistory"`
	CommitmentFulfillment float64 `json:"commitmentFulfillment"`
	BehavioralConsistency float64 `json:"behavioralConsistency"`
	ResponseQuality       float64 `json:"responseQuality"`
	SecurityPosture       float64 `json:"securityPosture"`
	EconomicReliability   float64 `json:"economicReliability"`
	PeerEndorsements      float64 `json:"peerEndorsements"`
}

// Score is the weighted sum, 0 to 100. Components out of range are clamped.
func (c TrustComponents) Score() float64 {
	part := func(weight, v float64) float64 { return weight * min(max(v, 0), 100) }
	// Weights in percent keep the sum exact for whole components.
	return (part(20, c.IdentityVerification) +
		part(15, c.CommunicationHistory) +
		part(20, c.CommitmentFulfillment) +
		part(10, c.BehavioralConsistency) +
		part(10, c.ResponseQuality) +
		part(10, c.SecurityPosture) +
		part(10, c.EconomicReliability) +
		part(5, c.PeerEndorsements)) / 100
}

// trustLevel gives the level of a score, 0 to 4. The thresholds of Verified,
// Established, Trusted and Premium fit every example in the vendor's pages
// (project).
func trustLevel(score float64) int {
	level := 0
	for _, from := range [...]float64{25, 50, 70, 90} {
		if score >= from {
			level++
		}
	}
	return level
}

// An Endorsement is the rating of an agent by another agent.
type Endorsement struct {
	Endorser string
	OrgID    string
	Score    float64 // the endorser's own score
	Value    float64 // 0..100
}

// Endorse computes the component of peer endorsements for an agent of
// organization orgID: the mean of at most 50 endorsements, one per endorser,
// by endorsers of score 30 or more (specification/security); those of the
// same organization weigh a quarter (project).
func Endorse(orgID string, list []Endorsement) float64 {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b Endorsement) int { return cmp.Compare(b.Score, a.Score) })
	seen := make(map[string]bool)
	var sum, weights float64
	for _, e := range list {
		if e.Score < 30 || seen[e.Endorser] || len(seen) == 50 {
			continue
		}
		seen[e.Endorser] = true
		weight := 1.0
		if e.OrgID == orgID {
			weight = 0.25
		}
		sum += weight * min(max(e.Value, 0), 100)
		weights += weight
	}
	if weights == 0 {
		return 0
	}
	return sum / weights
}
