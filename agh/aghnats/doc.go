// Package aghnats carries AGH Network v0 over NATS (AGH NATS binding page).
//
// [Gateway] is a hub. Either it serves NATS itself, for unmodified AGH peers:
//
//   - every configured [User] has a NATS account of its own. The server maps
//     its publications below agh.network.v0 to a subject that names the user;
//     only the hub's account imports that subject, as a service, and no
//     subscriber sees it. The server writes the name, so that no user can speak
//     as another, and the hub binds the envelope's from to it;
//   - a user's account imports from the hub's account the broadcasts of the
//     workspaces that the user may see, and a stream of its own for messages to
//     its peers. No subscription receives messages addressed to other users,
//     and replies in inboxes stay private;
//   - the server refuses a user's publications and subscriptions in other
//     workspaces, with the usual permissions violation of NATS;
//   - the hub republishes admitted messages, byte for byte, on the ordinary
//     subjects. Peers subscribe, publish and request as on any NATS server.
//
// Or it joins an operator's NATS by URL, as one more peer. There the server
// delivers every publication to every subscriber: the hub can refuse to act on a
// spoofed or unsolicited message, but other peers still receive it. Only
// permissions of the operator's server, or verified handles, protect them.
//
// [Transport] carries an [agh.Client] over any NATS connection.
//
// JetStream is optional and does not change the protocol: a gateway that joins by
// URL may read from the stream of the binding page, AGH_NETWORK_V0. Stored
// messages pass the same checks as live ones.
package aghnats
