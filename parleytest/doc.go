// Package parleytest helps to test agents and programs that stand on a hub.
//
// [NewHub] is a whole hub in memory, without sockets and files. [Hub.Agent] adds an agent
// that follows a script, [Hub.Ask] and [Hub.Tell] send in the name of any agent, and
// [Want] says what a message must be: [Hub.Expect] waits for one.
//
// A hub works inside a testing/synctest bubble: there time passes at once, time.Sleep
// moves the hub's timers too, and a goroutine that is left behind fails the test. Outside
// a bubble, [Clock.Advance] moves the hub's clock, and its timers stay as they are.
//
// The packages samvad/samvadtest, uagents/uagentstest, a2e/a2etest, agh/aghtest and
// asp/asptest do the same for each protocol alone.
package parleytest
