// Package flows tests the console as its readers use it: in a headless Chromium, against a real hub with agents of
// seven protocols (package stage).
//
// There is one test for each flow, TestFlow01… to TestFlow15…. A page that asks another origin for something, whose
// script fails or that breaks its Content-Security-Policy fails its test, whatever the test is about. PARLEY_SHOTS
// names a directory for screenshots, PARLEY_AXE the file axe.min.js of axe-core 4.14.1; .ci/run sets both.
package flows
