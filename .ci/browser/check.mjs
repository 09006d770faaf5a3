// Checks reports in a browser: no script fails, no other file is loaded, every plot exists and fits its frame, nothing
// is wider than the window, and all text is readable. Each report is checked light and dark, wide and narrow, and as
// printed on paper.
// Usage: node check.mjs REPORT.html [PLOT-KIND…]   (the kinds of plot that must be there)
import { pathToFileURL } from "node:url";
import { resolve } from "node:path";
import { launch } from "./browser.mjs";

const [file, ...kinds] = process.argv.slice(2);
if (!file) throw new Error("usage: check.mjs REPORT.html [PLOT-KIND…]");
const url = pathToFileURL(resolve(file)).href;
const faults = [];

// Returns the faults of the page as it is displayed. The browser runs this function in the page.
function inspect({ kinds, print }) {
    const faults = [];
    const shown = (element) => element.getClientRects().length > 0;
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth > width) {
        const wide = [...document.querySelectorAll("body *")]
            .filter((e) => !e.closest(".scroll, svg") && e.getBoundingClientRect().right > width + 1)
            .map((e) => `${e.tagName} ${e.className}`);
        faults.push(`is ${document.documentElement.scrollWidth} wide in a window of ${width}: ${wide.slice(0, 5)}`);
    }
    for (const kind of kinds) {
        if (!document.querySelector(`figure[data-plot="${kind}"]`)) faults.push(`has no plot of kind ${kind}`);
    }
    const figures = [...document.querySelectorAll("figure[data-plot]")].filter(shown);
    for (const figure of figures) {
        const plots = [...figure.querySelectorAll("svg.plot")].filter(shown);
        if (plots.length !== 1) {
            faults.push(`${figure.id} shows ${plots.length} pictures`);
            continue;
        }
        const svg = plots[0];
        const frame = svg.viewBox.baseVal;
        if (svg.querySelectorAll("g.point .mark").length === 0) faults.push(`${figure.id} has no marks`);
        for (const mark of svg.querySelectorAll("text, .mark")) {
            const box = mark.getBBox();
            if (box.x < frame.x - 1 || box.x + box.width > frame.x + frame.width + 1 || box.y + box.height > frame.y + frame.height + 1) {
                faults.push(`${figure.id}: ${mark.textContent || mark.tagName} is outside of its frame`);
            }
        }
        // Overlapping labels can't be read.
        const texts = [...svg.querySelectorAll("text.label, text.text")].map((text) => [text.textContent, text.getBBox()]);
        for (let i = 0; i < texts.length; i++) {
            for (let j = i + 1; j < texts.length; j++) {
                const [[a, p], [b, q]] = [texts[i], texts[j]];
                const across = Math.min(p.x + p.width, q.x + q.width) - Math.max(p.x, q.x);
                const down = Math.min(p.y + p.height, q.y + q.height) - Math.max(p.y, q.y);
                if (a && b && across > 1 && down > 3) faults.push(`${figure.id}: "${a}" runs into "${b}"`);
            }
        }
    }
    const channels = (color) => color.match(/[\d.]+/g).slice(0, 3).map(Number);
    const luminance = (color) => {
        const [r, g, b] = channels(color).map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (element) => {
        for (let e = element; e; e = e.parentElement) {
            const color = getComputedStyle(e).backgroundColor;
            if (!/, 0\)$|transparent/.test(color)) return color;
        }
        return "rgb(255, 255, 255)";
    };
    const dim = new Set();
    for (const element of document.querySelectorAll("p, td, th, small, b, span, li, summary, h1, h2, h3, figcaption, svg.plot text")) {
        if (!shown(element) || !element.textContent.trim()) continue;
        const style = getComputedStyle(element);
        const color = element instanceof SVGElement ? style.fill : style.color;
        const [a, b] = [luminance(color), luminance(ground(element))].sort((x, y) => y - x);
        const contrast = (a + 0.05) / (b + 0.05);
        if (contrast < 4.5) dim.add(`${element.tagName} ${element.getAttribute("class") ?? ""} has a contrast of ${contrast.toFixed(1)}`);
    }
    faults.push(...dim);
    if (print && shown(document.querySelector("nav"))) faults.push("prints its links");
    return { faults, figures: figures.length, ground: luminance(ground(document.body)) };
}

const browser = await launch();
try {
    const seen = new Set();
    let figures = 0;
    for (const [name, viewport, media] of [
        ["wide, light", { width: 1280, height: 900 }, { colorScheme: "light" }],
        ["wide, dark", { width: 1280, height: 900 }, { colorScheme: "dark" }],
        ["narrow, light", { width: 400, height: 800 }, { colorScheme: "light" }],
        ["narrow, dark", { width: 400, height: 800 }, { colorScheme: "dark" }],
        ["tiny", { width: 320, height: 600 }, { colorScheme: "light" }],
        ["between", { width: 720, height: 900 }, { colorScheme: "light" }],
        ["paper", { width: 794, height: 1123 }, { media: "print", colorScheme: "dark" }],
    ]) {
        const page = await browser.newPage({ viewport });
        const note = (what) => faults.push(`${name}: ${what}`);
        page.on("console", (message) => ["error", "warning"].includes(message.type()) && note(`says ${message.text()}`));
        page.on("pageerror", (error) => note(`throws ${error}`));
        page.on("dialog", (dialog) => (note(`asks ${dialog.message()}`), dialog.dismiss()));
        page.on("request", (request) => request.url() !== url && !request.url().startsWith("data:") && note(`loads ${request.url()}`));
        await page.emulateMedia(media);
        await page.goto(url);
        const print = media.media === "print";
        const found = await page.evaluate(inspect, { kinds, print });
        found.faults.forEach(note);
        const isDark = media.colorScheme === "dark" && !print;
        if (isDark !== found.ground < 0.2) note(`has a ground of luminance ${found.ground.toFixed(2)}`);
        if (print && (await page.pdf({ format: "A4" })).length < 10_000) note("prints nothing");
        // Opens the folded parts, because they must fit, too.
        await page.evaluate(() => document.querySelectorAll("details").forEach((details) => (details.open = true)));
        const open = await page.evaluate(inspect, { kinds, print: false });
        open.faults.filter((fault) => !fault.startsWith("prints")).forEach((fault) => note(`unfolded, ${fault}`));
        figures = Math.max(figures, found.figures);
        seen.add(name);
        await page.close();
    }
    const distinct = [...new Set(faults)];
    distinct.slice(0, 40).forEach((fault) => console.log(`${file}: ${fault}`));
    if (distinct.length > 0) process.exitCode = 1;
    else console.log(`${file}: ${figures} plots, ${seen.size} ways of looking at them, nothing wrong`);
} finally {
    await browser.close();
}
