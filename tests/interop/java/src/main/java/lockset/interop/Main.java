package lockset.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Real Redisson locks, driven over stdin and stdout.
 *
 * <p>A request is a line: {@code id peer thread verb args...}, separated by single spaces. A peer is a
 * Redisson client, and begins with {@code connect}; a thread is one of its threads, and does one
 * request after the other. The answer is a line, when it is there: {@code id ok value} or
 * {@code id error what}. The process ends when its input does.
 */
final class Main {
    private final Map<String, Peer> peers = new ConcurrentHashMap<>();
    private final PrintStream answers;

    private Main(PrintStream answers) {
        this.answers = answers;
    }

    public static void main(String[] args) throws IOException {
        var main = new Main(System.out);
        // Nobody else writes between the answers.
        System.setOut(System.err);
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try {
            for (String line; (line = input.readLine()) != null; ) {
                main.serve(line.split(" "));
            }
        } catch (RuntimeException error) {
            error.printStackTrace();
        } finally {
            // Whatever other threads still do: nobody is there to ask them.
            Runtime.getRuntime().halt(0);
        }
    }

    private void serve(String[] words) {
        String id = words[0], peer = words[1], thread = words[2], verb = words[3];
        switch (verb) {
            // These take their time, and others go on meanwhile.
            case "connect" -> new Thread(() -> answer(id, () -> {
                peers.put(peer, Peer.connect(words));
                return "";
            })).start();
            case "close" -> new Thread(() -> answer(id, () -> {
                peers.remove(peer).close();
                return "";
            })).start();
            case "interrupt" -> answer(id, () -> {
                peers.get(peer).thread(thread).interrupt();
                return "";
            });
            case "is_asleep" -> answer(id, () -> peers.get(peer).thread(thread).isAsleep());
            default -> peers.get(peer).thread(thread).run(() -> answer(id, () -> {
                return Verbs.perform(peers.get(peer), words);
            }));
        }
    }

    private void answer(String id, Callable<Object> work) {
        String answer;
        try {
            answer = " ok " + work.call();
        } catch (Throwable error) {
            answer = " error " + error;
        }
        answer = id + answer.lines().findFirst().orElse("") + "\n";
        var bytes = answer.getBytes(StandardCharsets.UTF_8);
        synchronized (answers) {
            answers.write(bytes, 0, bytes.length);
            answers.flush();
        }
    }
}
