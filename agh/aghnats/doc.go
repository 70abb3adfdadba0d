// Package aghnats carries AGH Network v0 over NATS (AGH NATS binding page).
//
// [Gateway] is a hub. Either it serves NATS itself, for unmodified AGH peers:
//
//   - every configured [User] has a NATS account of its own. What its
//     connections publish below agh.network.v0 is mapped away from all
//     subscribers and imported, as a service, by the hub's account alone,
//     under a subject that names the user. The server writes that name, so
//     that nobody can speak as another user, and the hub binds the envelope's
//     from to it;
//   - what a user's connections receive is imported from the hub's account:
//     the broadcasts of the workspaces it may see, and a stream of its own for
//     messages to its peers. Nobody hears what is addressed to others, whatever
//     it subscribes to, and replies in inboxes stay private;
//   - the server refuses a user who publishes or subscribes in a workspace of
//     others, with the permissions violation that any NATS client knows;
//   - the hub republishes what it admits, byte for byte, on the ordinary
//     subjects. Peers subscribe, publish and request as on any NATS server.
//
// Or it joins an operator's NATS by URL, as one more peer. There the server
// delivers what anybody publishes to everybody who subscribes: the hub can
// refuse to act on a spoofed or unsolicited message, but it cannot keep it
// from others. Only permissions of the operator's server can, or verified
// handles.
//
// [Transport] carries an [agh.Client] over any NATS connection.
//
// JetStream is optional and changes nothing of the protocol: a gateway that
// joins by URL may read from the stream of the binding page, AGH_NETWORK_V0,
// with every message passing the checks of a live one.
package aghnats
